"""The network as training sees it: Qwen3's forward pass in forty lines of plain PyTorch, and its export.

transformers' own module computes the same (a test says so) in more and smaller operations, and on two cores it is the
small operations that take the time. `to_transformers` hands the weights over for export.

vLLM: vllm/model_executor/models/qwen3.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

INIT_STD = 0.02


class Layer(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        hidden, head = config.hidden_size, int(config.head_dim or 0)
        self.heads, self.kv_heads = config.num_attention_heads, int(config.num_key_value_heads or 0)
        self.head_dim = head
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = _matrix((self.heads + 2 * self.kv_heads) * head, hidden)
        self.q_norm = nn.Parameter(torch.ones(head))
        self.k_norm = nn.Parameter(torch.ones(head))
        self.out = _matrix(hidden, self.heads * head)
        self.mlp_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = _matrix(2 * config.intermediate_size, hidden)
        self.down = _matrix(hidden, config.intermediate_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        rows, length, _ = x.shape
        qkv = F.linear(_norm(x, self.attention_norm), self.qkv).view(rows, length, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)  # [rows, heads, length, head_dim]
        q, k = _rotate(_norm(q, self.q_norm), cos, sin), _rotate(_norm(k, self.k_norm), cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + F.linear(attended.transpose(1, 2).reshape(rows, length, -1), self.out)
        gate, up = F.linear(_norm(x, self.mlp_norm), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class TinyQwen3(nn.Module):
    """Token ids [rows, length] to final hidden states; `embedding` is also the head (the weights are tied).

    `documents` [rows, length] numbers the document of each token: a token attends to its own document alone.
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = _matrix(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, ids: Tensor, documents: Tensor) -> Tensor:
        cos, sin = self._rope(ids.shape[1])
        same = documents.unsqueeze(2) == documents.unsqueeze(1)  # [rows, length, length]
        mask = same.tril().unsqueeze(1)
        x = F.embedding(ids, self.embedding)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return _norm(x, self.final_norm)

    def _rope(self, length: int) -> tuple[Tensor, Tensor]:
        dim = int(self.config.head_dim or 0)
        theta = (self.config.rope_parameters or {})["rope_theta"]
        frequencies = float(theta or 0) ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.outer(torch.arange(length), frequencies)
        return torch.cat([angles.cos(), angles.cos()], -1), torch.cat([-angles.sin(), angles.sin()], -1)


@torch.no_grad()
def to_transformers(network: TinyQwen3) -> Qwen3ForCausalLM:
    config = network.config
    state = {"model.embed_tokens.weight": network.embedding, "model.norm.weight": network.final_norm}
    for i, layer in enumerate(network.layers):
        assert isinstance(layer, Layer)
        prefix = f"model.layers.{i}."
        head = layer.head_dim
        q, k, v = layer.qkv.split([layer.heads * head, layer.kv_heads * head, layer.kv_heads * head])
        gate, up = layer.gate_up.chunk(2)
        parts = {
            "input_layernorm": layer.attention_norm, "post_attention_layernorm": layer.mlp_norm,
            "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": layer.out,
            "self_attn.q_norm": layer.q_norm, "self_attn.k_norm": layer.k_norm,
            "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer.down,
        }  # fmt: skip
        state |= {f"{prefix}{name}.weight": value for name, value in parts.items()}
    model = Qwen3ForCausalLM(config)
    state["lm_head.weight"] = network.embedding
    model.load_state_dict(state, strict=True)
    return model.eval()


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * INIT_STD)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on halves: (a, b) becomes (a cos - b sin, b cos + a sin); the sign of the first half is in `sin`."""
    return x * cos + torch.roll(x, x.shape[-1] // 2, dims=-1) * sin
