"""A decoder whose small operations between the matrix products are one Triton kernel each.

fuse() changes the class of a loaded model's modules to a subclass, which computes the same with other kernels and
overrides nothing else. Weights, names and attributes stay, so loading, packing and binding are as before.

Launches of a decode layer of Qwen3, without those of attention, which depend on its backend:

                          as it is                                  fused
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

import torch
from torch import nn

from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.kernels.add_rms_norm import add_rms_norm, rms_norm
from folovllm.layers.kernels.norm_rotary import norm_rotary_
from folovllm.layers.kernels.silu_mul import silu_mul
from folovllm.layers.norm import RMSNorm
from folovllm.models.decoder import MLP, SelfAttention


class FusedRMSNorm(RMSNorm):
    """The same numbers in one launch. add_and_norm() writes the sum over `residual`, which it returns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return self.forward(x), x
        return add_rms_norm(x, residual, self.weight, self.eps), residual


class FusedSelfAttention(SelfAttention):
    """Norm of the heads and rotation in one launch, over the projection's output."""

    def forward(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], metadata: AttentionMetadata
    ) -> torch.Tensor:
        heads = self.qkv_proj(x).view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_size)
        qk, v = heads.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        weight, eps = (None, 0.0) if self.qk_norm is None else (self.qk_norm.weight, self.qk_norm.eps)
        q, k = norm_rotary_(qk, self.num_heads, rotary, weight, eps).split([self.num_heads, self.num_kv_heads], dim=1)
        return self.o_proj(self.attn(q, k, v, metadata).flatten(1))


class FusedMLP(MLP):
    """silu(gate) * up in one launch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(silu_mul(self.gate_up_proj(x)))


FUSED: dict[type[nn.Module], type[nn.Module]] = {
    RMSNorm: FusedRMSNorm,
    SelfAttention: FusedSelfAttention,
    MLP: FusedMLP,
}


def can_fuse(device: torch.device) -> str | None:
    """Why a model on `device` cannot be fused; None where it can. What one of our kernels needs, all of them need."""
    return TritonBackend.unavailable_reason(device)


def fuse(model: nn.Module) -> int:
    """Swap the classes of the model's modules for the fused ones; returns how many were swapped.

    Only a module of exactly the known class is swapped: a subclass may compute something else, and is left alone.

    Raises:
        ValueError: the kernels cannot run where the model's weights are.
    """
    device = next(model.parameters()).device
    if (reason := can_fuse(device)) is not None:
        raise ValueError(f"device must be one that Triton kernels run on to fuse, got {str(device)!r}: {reason}")
    swapped = [module for module in model.modules() if type(module) in FUSED]
    for module in swapped:
        module.__class__ = FUSED[type(module)]
    return len(swapped)
