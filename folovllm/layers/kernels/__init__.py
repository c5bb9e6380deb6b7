"""Triton kernels for what lies between a layer's matrix products: each a single pass over memory."""
