"""Triton kernels for products with quantised weights."""
