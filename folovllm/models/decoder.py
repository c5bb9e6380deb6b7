"""The decoder that Qwen3, Qwen2, Llama, Mistral and their relatives with experts share. They differ in a few switches
(registry.py).

Tokens of all sequences are flat in one dimension, [num_tokens], without padding. Only attention needs to know where one
sequence ends and the next begins, from AttentionMetadata; everything else works on rows.

    ids ─ embed ─▶ x ─┬─ norm ─ qkv ─ rope ─ attention ─ o ─▶ (+) ─┬─ norm ─ gate·up ─ down ─▶ (+) ─▶ … ─ norm ─▶ hidden
                      └──────────────── residual ─────────────┘    └────────── residual ────────┘

vLLM: model_executor/models/llama.py, qwen2.py, qwen3.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from folovllm.attention.backend import Attention, AttentionExtras
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.linear import Linear, LMHead
from folovllm.layers.moe import ExpertsSpec, SparseMoE
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.layers.ops import LayerOps
from folovllm.layers.rotary import Rotary, RotaryEmbedding
from folovllm.lora.mapping import LoRAMapping


@dataclass(frozen=True)
class DecoderSpec:
    """The shape of a decoder and its switches, read off a Hugging Face configuration by registry.py."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    rope: dict[str, Any]
    tie_word_embeddings: bool
    windows: tuple[int | None, ...] = ()
    """How many tokens each layer's queries see, their own among them; None: all. (): no layer has a window."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm on each head of q and k before RoPE (Qwen3): keeps their products in range without biases."""
    experts: ExpertsSpec | None = None
    pools: bool = False
    """Whether its hidden states are the answer: a head in its checkpoint is none of the decoder's."""
    names: tuple[tuple[str, str], ...] = ()
    """Parts of names: (ours, the checkpoint's), where they differ (Mixtral)."""

    def name_in_checkpoint(self, name: str) -> str:
        for ours, theirs in self.names:
            name = name.replace(ours, theirs)
        return name

    @property
    def mlp_sizes(self) -> set[int]:
        """Middle sizes of all MLPs."""
        experts = self.experts
        dense = {self.intermediate_size} if experts is None or len(experts.layers) < self.num_layers else set()
        return dense | (set() if experts is None else set(experts.sizes.values()))

    @property
    def has_extras(self) -> bool:
        """Whether some layer needs a backend that supports AttentionExtras."""
        return any(window is not None for window in self.windows)

    @property
    def kv_heads(self) -> list[tuple[int, int]]:
        """Of each layer, how many heads of K and V there are and their size."""
        return [(self.num_kv_heads, self.head_size)] * self.num_layers

    def within(self, max_model_len: int) -> DecoderSpec:
        """Without the windows that never cut a sequence of so many tokens."""
        cut = [window if window is not None and window < max_model_len else None for window in self.windows]
        return replace(self, windows=tuple(cut) if any(cut) else ())


class SelfAttention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023, arXiv:2305.13245): num_heads / num_kv_heads query heads share
    one head of K and V, which shrinks the KV cache by that factor."""

    def __init__(self, spec: DecoderSpec, ops: LayerOps, name: str, window: int | None = None) -> None:
        super().__init__()
        self.ops = ops
        self.num_heads, self.num_kv_heads, self.head_size = spec.num_heads, spec.num_kv_heads, spec.head_size
        q_size, kv_size = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        of_qkv, of_o = ops.linear.for_layer(name, list(parts)), ops.linear.for_layer(name, ["o_proj"])
        self.qkv_proj = Linear(spec.hidden_size, parts, bias=spec.qkv_bias, method=of_qkv)
        self.o_proj = Linear(q_size, spec.hidden_size, bias=spec.o_bias, method=of_o)
        self.qk_norm = None
        if spec.qk_norm:
            self.qk_norm = QKNorm(spec.num_heads, spec.num_kv_heads, spec.head_size, spec.rms_norm_eps)
        extras = AttentionExtras(sliding_window=window)
        self.attn = Attention(spec.num_heads, spec.num_kv_heads, spec.head_size, extras=extras)

    def forward(self, x: torch.Tensor, rotary: Rotary, metadata: AttentionMetadata) -> torch.Tensor:
        qkv = self.qkv_proj(x, metadata.lora)
        return self.o_proj(self.ops.attend(self, qkv, rotary, metadata), metadata.lora)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: DecoderSpec, ops: LayerOps, name: str) -> None:
        super().__init__()
        size, bias, self.silu_mul = spec.intermediate_size, spec.mlp_bias, ops.silu_mul
        parts = {"gate_proj": size, "up_proj": size}
        of_gate_up, of_down = ops.linear.for_layer(name, list(parts)), ops.linear.for_layer(name, ["down_proj"])
        self.gate_up_proj = Linear(spec.hidden_size, parts, bias=bias, method=of_gate_up)
        self.down_proj = Linear(size, spec.hidden_size, bias=bias, method=of_down)

    def forward(self, x: torch.Tensor, lora: LoRAMapping | None = None) -> torch.Tensor:
        return self.down_proj(self.silu_mul(self.gate_up_proj(x, lora)), lora)


def make_mlp(spec: DecoderSpec, ops: LayerOps, name: str, layer: int) -> MLP | SparseMoE:
    """What stands behind the attention of that layer."""
    if spec.experts is None or layer not in spec.experts.layers:
        return MLP(spec, ops, name)
    return SparseMoE(
        spec.experts, spec.hidden_size, lambda size, part: MLP(replace(spec, intermediate_size=size), ops, part),
        ops.experts, ops.linear.for_layer(name, ["gate"]), name, ops.group,
    )  # fmt: skip


class DecoderLayer(nn.Module):
    def __init__(self, spec: DecoderSpec, ops: LayerOps, name: str, number: int) -> None:
        super().__init__()
        window = spec.windows[number] if spec.windows else None
        self.self_attn = SelfAttention(spec, ops, f"{name}.self_attn", window)
        self.mlp = make_mlp(spec, ops, f"{name}.mlp", number)
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops.rms_norm)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops.rms_norm)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, rotary: Rotary, metadata: AttentionMetadata
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(this layer's output not yet added, the residual stream), both [num_tokens, hidden]."""
        x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, rotary, metadata)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.feed_forward(x, metadata), residual

    def feed_forward(self, x: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """What stands behind attention. Adapters change no experts."""
        return self.mlp(x, metadata.lora) if isinstance(self.mlp, MLP) else self.mlp(x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, layers, final norm: everything below the LM head."""

    def __init__(self, spec: DecoderSpec, max_model_len: int, ops: LayerOps) -> None:
        super().__init__()
        self.ops = ops
        self.embed_tokens = ops.embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(spec, ops, f"model.layers.{i}", i) for i in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops.rms_norm)
        self.rotary = RotaryEmbedding(spec.head_size, max_model_len, spec.rope)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        x, rotary = self.embed_tokens(input_ids), self.rotary(positions)  # the same angles for every layer
        return self.ops.run_layers(self.layers, self.norm, x, rotary, metadata)


class DecoderForCausalLM(nn.Module):
    """A decoder and its LM head."""

    def __init__(self, spec: DecoderSpec, max_model_len: int, ops: LayerOps) -> None:
        super().__init__()
        self.decoder_spec = spec = spec.within(max_model_len)
        self.model = Decoder(spec, max_model_len, ops)
        head = "model.embed_tokens" if spec.tie_word_embeddings else "lm_head"
        self.lm_head = ops.lm_head(spec.hidden_size, spec.vocab_size, ops.linear.for_layer("", [head]))
        if spec.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """input_ids, positions [num_tokens] int64 -> hidden states [num_tokens, hidden], after the final norm."""
        return self.model(input_ids, positions, metadata)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden] -> logits [num_rows, vocab_size].

        A step apart from forward() because sampling needs the last position of each sequence only: for a prompt of
        1,000 tokens that is 1 row instead of 1,000 against the largest matrix of the model.
        """
        return self.lm_head(hidden)

    @property
    def attention_layers(self) -> list[Attention]:
        return [module for module in self.modules() if isinstance(module, Attention)]

    def checkpoint_slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name in a Hugging Face checkpoint, the view of our parameter that it fills), for every tensor."""
        for name, view in self._slots():
            yield self.decoder_spec.name_in_checkpoint(name), view

    def _slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path, module in self.named_modules():
            if isinstance(module, LMHead) and module.tied:
                continue
            if isinstance(module, Linear | QKNorm):
                # The parts of a stacked layer are in the checkpoint at the layer's place, under their names there.
                plain = isinstance(module, Linear) and "" in module.parts
                prefix = path if plain else path.rpartition(".")[0]
                for name, view in module.checkpoint_slots():
                    yield f"{prefix}.{name}", view
            else:
                for name, parameter in module.named_parameters(recurse=False):
                    yield f"{path}.{name}", parameter.data
