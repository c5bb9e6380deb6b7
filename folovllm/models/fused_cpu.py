"""A decoder with fewer torch calls between its matrix products, for CPUs.

A decode step hands each operator a handful of rows. Then the number of calls decides the time, not the arithmetic in
them. Plain RMSNorm is seven passes over x, because torch has no kernel of its own for it on a CPU. The classes below
compute the same in fewer passes, and write over intermediate results that are not read again:

    passes of a decode layer of Qwen3     as it is    here
    residual and norm, twice                  16        10    |x| comes from one reduction
    norm of heads, RoPE                       10         7    q and k are turned where they lie
    SwiGLU                                     2         2    the product is written over silu(gate)
    products                                   4         4    small weights by the kernel that starts fastest

fuse_cpu() changes the modules of a model to these classes; weights, names and attributes stay. The gain depends on how
long the products take. It is about half of the step in a model small enough for the caches, and a few percent where the
weights are read from memory.

vLLM: csrc/cpu/layernorm.cpp, csrc/cpu/pos_encoding.cpp
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.linear import Linear
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.models.decoder import MLP, DecoderForCausalLM, SelfAttention

# Entries of a weight up to which a plain product is the better one: two to three times as fast as oneDNN's at one row,
# and no slower at 64. With twice as many entries it takes up to 1.6 times as long from four rows on (two cores with
# AVX2).
SMALL_WEIGHT = 1 << 17


class LeanRMSNorm(RMSNorm):
    """x / sqrt(mean(x^2) + eps) * w, as x / sqrt(|x|^2 + n eps) * w sqrt(n): the n of the mean is in the constants."""

    shortest: torch.Tensor
    """sqrt(n eps): eps as a length. A shorter x is scaled as if it were about this long."""
    scale: torch.Tensor

    def prepare(self) -> None:
        """Compute the constants; the weight has been loaded."""
        size = self.weight.shape[-1]
        self.shortest = torch.tensor(math.sqrt(self.eps * size))
        self.scale = self.weight.data * math.sqrt(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _normalise(x, self.shortest, self.scale)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum is written over `residual`, which belongs to the decoder alone, and returned."""
        residual = x if residual is None else residual.add_(x)
        return self.forward(residual), residual


class LeanQKNorm(QKNorm):
    """The same for each head."""

    shortest: torch.Tensor
    scale: torch.Tensor

    def prepare(self) -> None:
        """Compute the constants; the weight has been loaded."""
        size = self.weight.shape[-1]
        self.shortest = torch.tensor(math.sqrt(self.eps * size))
        q, k = (weight.expand(n, -1) for weight, n in zip(self.weight.data, self.repeats, strict=True))
        self.scale = torch.cat((q, k)) * math.sqrt(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _normalise(x, self.shortest, self.scale)


def _normalise(x: torch.Tensor, shortest: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(shortest)
    return (x / length).mul_(scale)


class LeanSelfAttention(SelfAttention):
    """Rotates q and k where they lie: in the projection's output, or in what the norm has made of it."""

    def forward(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], metadata: AttentionMetadata
    ) -> torch.Tensor:
        heads = self.qkv_proj(x).view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_size)
        qk, v = heads.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        cos, sin = rotary
        swapped = qk.roll(self.head_size // 2, dims=-1)
        q, k = qk.mul_(cos).addcmul_(swapped, sin).split([self.num_heads, self.num_kv_heads], dim=1)
        return self.o_proj(self.attn(q, k, v, metadata).flatten(1))


class LeanMLP(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate).mul_(up))


class SmallLinear(Linear):
    """A product whose weight stays in the caches. No layout helps to read it there, and at one row a call into oneDNN
    or FBGEMM takes longer to start than the whole product. The weight is kept in float32, whatever the checkpoint has,
    and transposed, because torch's product reads that form faster."""

    transposed: torch.Tensor
    wide_bias: torch.Tensor | None

    def prepare(self) -> None:
        """Transpose the loaded weight, and keep this copy only."""
        self.transposed = self.weight.data.float().t().contiguous()
        self.wide_bias = None if self.bias is None else self.bias.data.float()
        self.weight.data = self.weight.data.new_empty(0, self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wide_bias is None:
            return x.mm(self.transposed)
        return torch.addmm(self.wide_bias, x, self.transposed)


LEAN: dict[type[nn.Module], type[nn.Module]] = {
    RMSNorm: LeanRMSNorm,
    QKNorm: LeanQKNorm,
    SelfAttention: LeanSelfAttention,
    MLP: LeanMLP,
}


def can_fuse_cpu(model: DecoderForCausalLM) -> str | None:
    """Why a model cannot be fused; None where it can."""
    if next(model.parameters()).device.type != "cpu":
        return "its weights are not on the CPU"
    if (flowing := model.model.norm.weight.dtype) != torch.float32:
        # With bf16 units the products take bfloat16: float32 between them would be converted before and after each.
        return f"what flows between its layers is {flowing} and not float32"
    return None


def fuse_cpu(model: DecoderForCausalLM) -> int:
    """Swap the classes of a loaded model's modules for these; returns how many were swapped.

    Runs before packing.py, which packs the linear layers that are left. Only a module of exactly the known class is
    swapped: a subclass may compute something else, and is left alone.

    Raises:
        ValueError: the model does not compute in float32 on a CPU.
    """
    if (reason := can_fuse_cpu(model)) is not None:
        raise ValueError(f"model must compute in float32 on a CPU to be fused for one: {reason}")
    swapped = 0
    for module in model.modules():
        if type(module) is Linear and module.weight.numel() <= SMALL_WEIGHT:
            module.__class__ = SmallLinear
        elif type(module) in LEAN:
            module.__class__ = LEAN[type(module)]
        else:
            continue
        if isinstance(module, LeanRMSNorm | LeanQKNorm | SmallLinear):
            module.prepare()
        swapped += 1
    return swapped
