"""A decoder whose layers run in our own compiled CPU kernels between the products.

    passes of a decode layer of Qwen3     torch      fused_cpu.py    here
    residual and norm, twice                16             10           2
    norm of heads, RoPE                     10              7           1
    SwiGLU                                   2              2           1
    K and V into the cache                   2              2           1

Each pass is one call and at most one wait for other threads. The products go through layers/linear_kernels.py and
attention through attention/backends/cpu.py as elsewhere. fuse_compiled() changes the modules of a loaded model to the
classes below; weights, names and attributes stay.

vLLM: csrc/cpu/layernorm.cpp, csrc/cpu/pos_encoding.cpp, csrc/cpu/activation.cpp
"""

from __future__ import annotations

import torch
from torch import nn

from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.kernels import cpu
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.models.decoder import MLP, DecoderForCausalLM, SelfAttention
from folovllm.utils.cpu_kernels import DTYPE_NAMES, unavailable_reason


class CompiledRMSNorm(RMSNorm):
    wide_weight: torch.Tensor
    """The weight in float32."""

    def prepare(self) -> None:
        """The weight has been loaded."""
        self.wide_weight = self.weight.data.float().contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cpu.add_rms_norm(x, None, self.wide_weight, self.eps)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum is written over `residual`, which belongs to the decoder alone, and returned."""
        if residual is None:
            return self.forward(x), x
        return cpu.add_rms_norm(x, residual, self.wide_weight, self.eps), residual


class CompiledSelfAttention(SelfAttention):
    """Normalises and turns q and k where the projection has put them."""

    norm_weights: tuple[torch.Tensor, torch.Tensor] | None
    """[head_size] in float32, for q and for k."""

    def prepare(self) -> None:
        """The weights have been loaded."""
        norm, self.norm_weights = self.qk_norm, None
        if norm is not None:
            q, k = norm.weight.data.float()
            self.norm_weights = q.contiguous(), k.contiguous()

    def forward(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], metadata: AttentionMetadata
    ) -> torch.Tensor:
        heads = self.qkv_proj(x).view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_size)
        eps = self.qk_norm.eps if self.qk_norm is not None else 0.0
        cpu.norm_rotary(heads, self.norm_weights, *rotary, self.num_heads, self.num_kv_heads, eps)
        q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        return self.o_proj(self.attn(q, k, v, metadata).flatten(1))


class CompiledMLP(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(cpu.silu_mul(self.gate_up_proj(x)))


COMPILED: dict[type[nn.Module], type[nn.Module]] = {
    RMSNorm: CompiledRMSNorm,
    SelfAttention: CompiledSelfAttention,
    MLP: CompiledMLP,
}


def can_fuse_compiled(model: DecoderForCausalLM) -> str | None:
    """Why a model cannot run in the compiled kernels; None where it can."""
    if next(model.parameters()).device.type != "cpu":
        return "its weights are not on the CPU"
    if (flowing := model.model.norm.weight.dtype) not in DTYPE_NAMES:
        return f"what flows between its layers is {flowing}, and not float32 or bfloat16"
    return unavailable_reason()


def fuse_compiled(model: DecoderForCausalLM) -> int:
    """Swap the classes of a loaded model's modules for these; returns how many were swapped.

    Only a module of exactly the known class is swapped: a subclass may compute something else, and is left alone. So is
    an attention whose norm of heads is of another class.

    Raises:
        ValueError: the model cannot run in the compiled kernels; the text says why.
    """
    if (reason := can_fuse_compiled(model)) is not None:
        raise ValueError(f"model must be one that the compiled CPU kernels can run: {reason}")
    swapped = 0
    for module in model.modules():
        if type(module) not in COMPILED:
            continue
        if isinstance(module, SelfAttention) and type(module.qk_norm) not in (type(None), QKNorm):
            continue
        module.__class__ = COMPILED[type(module)]
        if isinstance(module, CompiledRMSNorm | CompiledSelfAttention):
            module.prepare()
        swapped += 1
    return swapped
