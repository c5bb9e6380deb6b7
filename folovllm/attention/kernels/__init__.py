"""Attention in Triton: one file per kernel, each with the function that launches it.

A Triton kernel says what one *program* does with whole tiles (small matrices). The compiler decides which thread of the
GPU holds which number. Importing a module of this package imports triton, so backends do it when they are used. With
TRITON_INTERPRET=1, set before that import, the programs run one after the other in NumPy. That is slow and gives the
same numbers, so the kernels can be tested without a GPU.

vLLM: v1/attention/ops/
"""
