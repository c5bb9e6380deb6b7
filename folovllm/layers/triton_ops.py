"""A decoder whose small operations between the matrix products are one Triton kernel each.

Launches of a decode layer of Qwen3, without those of attention, which depend on its backend:

                          torch                                    here
    input norm            add, norm                          2      add_rms_norm   1
    qkv                   product                            1      product        1
    norm of heads, RoPE   norm, weight, widen, roll, cos,    7      norm_rotary    1
                          sin, narrow
    output                product                            1      product        1
    second norm           add, norm                          2      add_rms_norm   1
    gate and up           product                            1      product        1
    SwiGLU                silu, times                        2      silu_mul       1
    down                  product                            1      product        1
                                                            17                     8

At 5 microseconds of the host's time for a launch, 28 layers are 2.4 ms of launching against 1.1, in a step whose 1.2 GB
of weights an H200 reads in 0.3 ms: without CUDA graphs, the launches are the step.

vLLM: its layers choose between forward_native and forward_cuda (model_executor/custom_op.py)
"""

from __future__ import annotations

from folovllm.layers.kernels.add_rms_norm import rms_norm
from folovllm.layers.kernels.norm_rotary import norm_rotary
from folovllm.layers.kernels.silu_mul import silu_mul
from folovllm.layers.linear import PLAIN, LinearMethod
from folovllm.layers.ops import LayerOps


def triton_ops(linear: LinearMethod = PLAIN) -> LayerOps:
    return LayerOps(linear, rms_norm, norm_rotary, silu_mul)
