"""What computes a decoder's layers beside attention, in plain torch.

The layers hold weights and know their shapes. How they are computed is given to them when the model is built, by one
object for all of them: how products are made, the three small operations between products, and the two ends of the
vocabulary.

    norm ─ qkv ─ norm_rotary ─ attention ─ o ─▶ (+) ─ norm ─ gate·up ─ silu_mul ─ down ─▶ (+) ─▶ …

vLLM: LinearMethodBase (model_executor/layers/linear.py) and CustomOp (model_executor/custom_op.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.layers.linear import PLAIN, Embedding, Linear, LinearMethod, LMHead
from folovllm.layers.moe import Experts
from folovllm.layers.norm import Norm, QKNorm, RMSNorm, rms_norm
from folovllm.layers.rotary import Rotary, apply_rotary

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def norm_rotary(heads: torch.Tensor, norm: QKNorm | None, rotary: Rotary, num_heads: int, num_kv_heads: int) -> QKV:
    """q, k and v of `heads` [num_tokens, num_heads + 2 * num_kv_heads, head_size], as the stacked projection leaves
    them: q and k are normalised head by head, where there is a norm, and turned by their tokens' angles."""
    qk, v = heads.split([num_heads + num_kv_heads, num_kv_heads], dim=1)
    if norm is not None:
        qk = F.rms_norm(qk, qk.shape[-1:], None, norm.eps) * norm.per_head
    q, k = apply_rotary(qk, *rotary).split([num_heads, num_kv_heads], dim=1)
    return q, k, v


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SwiGLU's middle (Shazeer, 2020, arXiv:2002.05202): silu(gate) * up. [num_tokens, 2 * intermediate], gate beside
    up, -> [num_tokens, intermediate]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@dataclass
class LayerOps:
    linear: LinearMethod = PLAIN
    rms_norm: Norm = rms_norm
    norm_rotary: Callable[[torch.Tensor, QKNorm | None, Rotary, int, int], QKV] = norm_rotary
    silu_mul: Callable[[torch.Tensor], torch.Tensor] = silu_mul
    embedding: Callable[[int, int], Embedding] = Embedding
    lm_head: Callable[[int, int, LinearMethod], LMHead] = LMHead
    group: GroupCoordinator | None = None
    """Of the ranks that compute these layers together; None: there is one."""
    experts: Callable[[int, Callable[[int], nn.Module]], Experts] = Experts

    def process_weights_after_loading(self, model: nn.Module) -> None:
        """One layer after the other, so that memory holds two forms of one weight at most."""
        for module in model.modules():
            if isinstance(module, Linear):
                module.method.process_weights_after_loading(module)

    def warm_up(self, model: nn.Module) -> None:
        """Compile what is compiled at its first use, before any request. The KV cache is bound."""

    def attend(self, layer: Any, qkv: torch.Tensor, rotary: Rotary, metadata: Any) -> torch.Tensor:
        """What SelfAttention computes between its products, [num_tokens, num_heads * head_size]."""
        heads = qkv.view(-1, layer.num_heads + 2 * layer.num_kv_heads, layer.head_size)
        q, k, v = self.norm_rotary(heads, layer.qk_norm, rotary, layer.num_heads, layer.num_kv_heads)
        return layer.attn(q, k, v, metadata).flatten(1)  # type: ignore[no-any-return]

    def run_layers(
        self, layers: Iterable[nn.Module], norm: RMSNorm, x: torch.Tensor, rotary: Rotary, metadata: Any
    ) -> torch.Tensor:
        """Embeddings `x` [num_tokens, hidden] -> hidden states behind all layers and the last norm."""
        residual = None
        for layer in layers:
            x, residual = layer(x, residual, rotary, metadata)
        return norm(x, residual)[0]
