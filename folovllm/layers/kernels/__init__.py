"""Triton kernels for what is between a layer's matrix products: each a single pass over memory."""
