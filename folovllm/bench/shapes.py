"""Shapes of models, without a download and without torch: to be measured with random weights, or to be reckoned with.

    weights of a layer   hidden * (heads + 2 * kv_heads) * head_dim   q, k, v
                       + heads * head_dim * hidden                    o
                       + 3 * hidden * intermediate                    gate, up, down; for each expert, where there are
    head                 vocab * hidden

Norms are left out: some thousand numbers beside millions.

vLLM: v1/metrics/perf.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from folovllm.utils.checks import check_int, did_you_mean, wrong
from folovllm.utils.named_files import read_json

DEFAULT_SHAPE = "qwen3-0.6b"


def _shape(hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, **more: Any) -> dict[str, Any]:
    """`more` by transformers' names: how wide the MLP is, the vocabulary, the longest sequence, the rotation's base."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        **more,
    }


_QWEN3 = {"vocab_size": 151936, "max_position_embeddings": 40960}
# Shapes of well-known models, as keywords of their transformers configuration. Speed depends on shapes and
# not on what the weights say, so no download is needed to measure it.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _shape(1024, 28, 16, 8, 128, intermediate_size=3072, **_QWEN3),
    "qwen3-1.7b": _shape(2048, 28, 16, 8, 128, intermediate_size=6144, **_QWEN3),
    # 16 GB in bfloat16: for a GPU.
    "qwen3-8b": _shape(4096, 36, 32, 8, 128, intermediate_size=12288, **{**_QWEN3, "tie_word_embeddings": False}),
    # As large as GPT-2 in every respect, and with its vocabulary; the decoder is ours, so SwiGLU has three matrices of
    # 2,048 where GPT-2 has two of 3,072.
    "gpt2-sized": _shape(
        768, 12, 12, 12, 64, intermediate_size=2048, vocab_size=50257, max_position_embeddings=1024, rope_theta=1e4
    ),
    # Made here. The first is for a CPU: its float32 weights (118 MB) are more than caches hold, and a prompt of 2,000
    # tokens takes seconds, not minutes. The second is small enough to try a command out.
    "qwen3-mini": _shape(512, 8, 8, 4, 64, intermediate_size=1536, vocab_size=8192, max_position_embeddings=4096),
    "qwen3-tiny": _shape(64, 2, 4, 2, 16, intermediate_size=128, vocab_size=512, max_position_embeddings=2048),
}
# As their makers publish them in config.json; too large for a machine at hand, so they are reckoned with only.
_LLAMA = {"vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False, "rope_theta": 5e5}
NAMED: dict[str, dict[str, Any]] = {
    **SHAPES,
    "llama-3.1-8b": _shape(4096, 32, 32, 8, 128, intermediate_size=14336, **_LLAMA),
    "llama-3.1-70b": _shape(8192, 80, 64, 8, 128, intermediate_size=28672, **_LLAMA),
}
# What a config.json with this has is no dense decoder with a plain cache.
NOT_MODELLED = ("n_routed_experts", "kv_lora_rank", "quantization_config")

MOST = 2**31
"""Of any field. No model comes near it, and products of three of them are still floats."""


@dataclass(frozen=True)
class ModelShape:
    """Counts of numbers, not of bytes."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    max_model_len: int
    sparse_layers: int = 0
    """Of the layers, those that have experts instead of one MLP."""
    num_experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    shared_size: int = 0

    @property
    def body(self) -> int:
        """Weights of all layers' matrices."""
        return self._body(self.num_experts)

    def read(self, num_tokens: int) -> int:
        """Of them, those that a step of so many tokens reads, if the router chooses at random: see
        ExpertsSpec.experts_read."""
        missed = 1 - self.top_k / self.num_experts if self.num_experts else 0
        return self._body(self.num_experts * (1 - missed**num_tokens))

    @property
    def active(self) -> int:
        """Of them, those that a token is multiplied by."""
        return self._body(self.top_k)

    def _body(self, experts: float) -> int:
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        dense = (self.layers - self.sparse_layers) * 3 * self.intermediate
        each = self.num_experts + 3 * (self.shared_size + experts * self.expert_size)  # the router has one row for each
        return round(self.layers * attention + self.hidden * (dense + self.sparse_layers * each))

    @property
    def head(self) -> int:
        """Weights of the last matrix, which makes the logits."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All that is in memory; the embedding is the head where they are tied."""
        return self.body + self.head * (1 if self.tied else 2)

    @property
    def kv_per_token(self) -> int:
        """Numbers of one token's keys and values, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @classmethod
    def of(cls, name: str, *, quantized: bool = False) -> ModelShape:
        """A named shape, a config.json, or a folder that has one. quantized: it may be; numbers are counted, not bytes.

        Raises:
            ValueError: neither, a field that is missing or no positive integer, or a model that is not modelled.
        """
        if name.lower() in NAMED:
            return cls.of_config(name.lower(), NAMED[name.lower()])
        path = Path(name)
        path = path / "config.json" if path.is_dir() else path
        if not path.exists():
            hint = did_you_mean(name.lower(), NAMED)
            raise wrong("model", f"be one of {', '.join(NAMED)}, or a config.json", name, hint.strip(" ;,"))
        config = read_json("model", "be a config.json", path)
        if not isinstance(config, dict):
            raise wrong("model", "be a config.json with an object", name)
        config = config.get("text_config", config)
        if not isinstance(config, dict):
            raise wrong("text_config", f"be an object in the config.json {name}", config)
        return cls.of_config(name, config, quantized=quantized)

    @classmethod
    def of_config(cls, name: str, config: Mapping[str, Any], *, quantized: bool = False) -> ModelShape:
        for field in NOT_MODELLED:
            if config.get(field) and not (quantized and field == "quantization_config"):
                raise ValueError(
                    f"model {name} has {field}={config[field]!r}, which is not modelled: a dense decoder with plain "
                    "keys and values is"
                )
        heads, layers = _positive(name, config, "num_attention_heads"), _positive(name, config, "num_hidden_layers")
        hidden = _positive(name, config, "hidden_size")
        return cls(
            name=name,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=_positive(name, {"num_key_value_heads": heads, **config}, "num_key_value_heads"),
            head_dim=hidden // heads if config.get("head_dim") is None else _positive(name, config, "head_dim"),
            intermediate=_positive(name, config, "intermediate_size"),
            vocab=_positive(name, config, "vocab_size"),
            tied=bool(config.get("tie_word_embeddings", False)),
            max_model_len=_positive(name, {"max_position_embeddings": 4096, **config}, "max_position_embeddings"),
            **_experts(name, config, layers),
        )


def _experts(name: str, config: Mapping[str, Any], layers: int) -> dict[str, int]:
    """Qwen's fields, or Mixtral's, whose experts have intermediate_size."""
    count = "num_local_experts" if config.get("num_local_experts") else "num_experts"
    if not config.get(count):
        return {}
    sizes = {"moe_intermediate_size": config.get("intermediate_size"), "decoder_sparse_step": 1, **config}
    step, dense = _positive(name, sizes, "decoder_sparse_step"), config.get("mlp_only_layers") or ()
    return {
        "sparse_layers": sum((i + 1) % step == 0 and i not in dense for i in range(layers)),
        "num_experts": _positive(name, config, count),
        "top_k": _positive(name, config, "num_experts_per_tok"),
        "expert_size": _positive(name, sizes, "moe_intermediate_size"),
        "shared_size": int(config.get("shared_expert_intermediate_size") or 0),
    }


def _positive(model: str, config: Mapping[str, Any], field: str) -> int:
    if field not in config:
        raise ValueError(f"model {model} must have {field} in its config.json, and has not")
    value = config[field]
    check_int(f"{field} of {model}", value, 1)
    if value > MOST:
        raise wrong(f"{field} of {model}", f"be at most {MOST:,}", value)
    return int(value)
