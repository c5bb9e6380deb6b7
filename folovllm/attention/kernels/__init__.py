"""Attention in Triton: one file per kernel, each with the function that launches it.

Triton writes a kernel for a *program*, which works on whole tiles (small matrices); which thread of the GPU holds which
number is the compiler's business. Importing a module of this package imports triton, so backends do it when they are
used. With TRITON_INTERPRET=1, set before that, the programs run one after the other in NumPy: slow, and the same
numbers, which is how the kernels are tested without a GPU.

vLLM: v1/attention/ops/
"""
