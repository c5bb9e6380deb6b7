"""Traces: what each step of the engine did, as a file, and what is made from such a file."""
