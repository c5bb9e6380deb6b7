"""A decoder that runs in our own compiled CPU kernels: its products, and the layers' operations between them.

    passes of a decode layer of Qwen3     torch     here
    residual and norm, twice                16        2
    norm of heads, RoPE                     10        1
    SwiGLU                                   2        1
    K and V into the cache                   2        1
    products                                 4        4     over weights in panels (csrc/panels.h)

Each pass is one call and at most one wait for other threads. Attention goes through attention/backends/cpu.py.
fuse_compiled() changes the modules of a loaded model to the classes below; names and attributes stay. It does so for
all of a model or, where can_fuse_compiled() says why not, for none of it: then torch's operators run it as it is.

A CPU without bf16 units computes in float32, from weights that stay bfloat16: the embedding widens, and all that flows
behind it is float32. In bfloat16 each small operator would widen its input and round its output.

vLLM: csrc/cpu/layernorm.cpp, csrc/cpu/pos_encoding.cpp, csrc/cpu/activation.cpp,
      model_executor/layers/utils.py (dispatch_cpu_unquantized_gemm)
"""

from __future__ import annotations

import torch
from torch import nn

from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.embedding import Embedding, LMHead
from folovllm.layers.kernels import cpu
from folovllm.layers.linear import Linear
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.models.decoder import MLP, DecoderForCausalLM, SelfAttention
from folovllm.utils.cpu_kernels import DTYPE_NAMES, unavailable_reason
from folovllm.utils.devices import cpu_has_bf16_units, release_freed_memory


class CompiledLinear(Linear):
    """Keeps its weight in panels, and no other copy of it."""

    packed: torch.Tensor
    """[panels, steps, width, columns], see layers/kernels/cpu.py."""
    wide_bias: torch.Tensor | None
    """In float32."""

    def prepare(self, *, keep_weight: bool = False) -> None:
        """The weight has been loaded. keep_weight: an embedding reads the same tensor, so it stays."""
        self.packed = cpu.pack(self.weight.detach(), pairs=multiplies_pairs(self.weight.dtype))
        self.wide_bias = None if self.bias is None else self.bias.detach().float()
        if not keep_weight:
            # An empty tensor takes its place: dtype and device stay readable, and the memory is free.
            self.weight.data = self.weight.data.new_empty(0, self.in_features)
            release_freed_memory()  # weights of a few MB are freed into the heap, where they would stay

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = torch.bfloat16 if self.packed.shape[3] == 2 else torch.float32
        y = cpu.linear(x.to(dtype).contiguous(), self.packed, self.wide_bias, self.out_features)
        return y.to(x.dtype)


class CompiledLMHead(CompiledLinear, LMHead):
    """A tied head has panels of its own: for Qwen3-0.6B, 26% of the weights a second time."""

    def prepare(self, *, keep_weight: bool = False) -> None:
        super().prepare(keep_weight=keep_weight or self.tied)


class WideEmbedding(Embedding):
    """An embedding that returns float32 rows, so that everything computed from them is float32."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids).float()


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
    Linear: CompiledLinear,
    LMHead: CompiledLMHead,
    RMSNorm: CompiledRMSNorm,
    SelfAttention: CompiledSelfAttention,
    MLP: CompiledMLP,
}


def multiplies_pairs(dtype: torch.dtype) -> bool:
    """Whether products of this dtype take two bfloat16 numbers at a time. They then give bfloat16, else float32."""
    return dtype == torch.bfloat16 and cpu_has_bf16_units() and cpu.has_bf16_pairs()


def can_fuse_compiled(model: DecoderForCausalLM) -> str | None:
    """Why a model cannot run in the compiled kernels; None where it can."""
    return can_multiply(model.lm_head.weight)


def can_multiply(weight: torch.Tensor) -> str | None:
    """Why the compiled kernels cannot multiply by a weight; None where they can."""
    if weight.device.type != "cpu":
        return "the weights are not on the CPU"
    if weight.dtype not in DTYPE_NAMES:
        return f"the weights are {str(weight.dtype).removeprefix('torch.')}, and not float32 or bfloat16"
    return unavailable_reason()


def fuse_compiled(model: DecoderForCausalLM) -> int:
    """Swap the classes of a loaded model's modules for these; returns how many were swapped.

    Only a module of exactly the known class is swapped: a subclass may compute something else, and is left alone. So is
    an attention whose norm of heads is of another class. Weights are packed one at a time, so that memory holds both
    forms of one of them at most.

    Raises:
        ValueError: the model cannot run in the compiled kernels; the text says why.
    """
    if (reason := can_fuse_compiled(model)) is not None:
        raise ValueError(f"model must be one that the compiled CPU kernels can run: {reason}")
    dtype = model.lm_head.weight.dtype
    if dtype == torch.bfloat16 and not multiplies_pairs(dtype):
        _widen(model)
    swapped = 0
    for module in model.modules():
        if type(module) not in COMPILED:
            continue
        if isinstance(module, SelfAttention) and type(module.qk_norm) not in (type(None), QKNorm):
            continue
        module.__class__ = COMPILED[type(module)]
        if isinstance(module, CompiledLinear | CompiledRMSNorm | CompiledSelfAttention):
            module.prepare()
        swapped += 1
    return swapped


def _widen(model: DecoderForCausalLM) -> None:
    """Let float32 flow between the layers, while weights and KV cache stay bfloat16."""
    model.model.embed_tokens.__class__ = WideEmbedding
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.weight.data = module.weight.data.float()
