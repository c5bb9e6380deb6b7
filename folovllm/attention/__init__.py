"""Attention over a KV cache: one small interface, and the backends that implement it."""
