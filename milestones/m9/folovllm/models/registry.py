"""Which decoder a configuration asks for: architecture (config.json's "architectures") -> the switches of our decoder.

    Qwen3             no biases; q and k are normalised per head
    Qwen2, Qwen2.5, MiMo    biases on q, k and v
    Llama 2 and 3.x, Mistral without its sliding window    the plain decoder

vLLM: model_executor/models/registry.py, qwen3.py, qwen2.py, llama.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from folovllm.errors import ModelLoadError
from folovllm.models.decoder import DecoderSpec


def _qwen3(config: Any) -> dict[str, bool]:
    return {"qk_norm": True, "qkv_bias": config.attention_bias, "o_bias": config.attention_bias}


def _qwen2(config: Any) -> dict[str, bool]:
    return {"qkv_bias": True}


def _llama(config: Any) -> dict[str, bool]:
    bias = getattr(config, "attention_bias", False)  # Mistral's configuration has neither field
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": getattr(config, "mlp_bias", False)}


SWITCHES: dict[str, Callable[[Any], dict[str, bool]]] = {
    "Qwen3ForCausalLM": _qwen3,
    "Qwen2ForCausalLM": _qwen2,
    "MiMoForCausalLM": _qwen2,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _llama,
}
# config.json's "model_type", by which transformers chooses, -> the architecture.
_BY_MODEL_TYPE = {name.removesuffix("ForCausalLM").lower(): name for name in SWITCHES}


def decoder_spec(config: Any) -> DecoderSpec:
    """The decoder of a transformers configuration: by its architectures, or by model_type where it names none.

    Raises:
        ModelLoadError: none of its architectures is known; the text lists those that are.
    """
    names = config.architectures or [_BY_MODEL_TYPE.get(config.model_type, config.model_type)]
    switches = next((SWITCHES[name] for name in names if name in SWITCHES), None)
    if switches is None:
        raise ModelLoadError(f"architectures {names} are not supported; known: {', '.join(SWITCHES)}")
    rope = dict(config.rope_parameters)
    rope["original_max_position_embeddings"] = (
        rope.get("original_max_position_embeddings") or config.max_position_embeddings
    )
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope=rope,
        tie_word_embeddings=config.tie_word_embeddings,
        sliding_window=_sliding_window(config),
        **switches(config),
    )


def _sliding_window(config: Any) -> int | None:
    """How many tokens back attention reaches in some layer; None where every layer sees all of them."""
    if not getattr(config, "use_sliding_window", True):
        return None
    kinds = getattr(config, "layer_types", None)  # Qwen's configurations have it, Mistral's slides in every layer
    return getattr(config, "sliding_window", None) if kinds is None or "sliding_attention" in kinds else None
