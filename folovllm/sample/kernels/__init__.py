"""Sampling in one Triton kernel, for CUDA."""
