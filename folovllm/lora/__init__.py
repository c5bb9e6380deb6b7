"""Adapters: what a request names, the rows of a step that have one, and PEFT's folder."""
