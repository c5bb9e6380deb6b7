"""Which decoder a configuration asks for: architecture (config.json's "architectures") -> the switches of our decoder.
And what of it the decoder cannot have, refused by the field's name before anything is built.

    Qwen3             no biases; q and k are normalised per head
    Qwen2, Qwen2.5    biases on q, k and v
    Llama 2 and 3.x, Mistral without its sliding window    the plain decoder

A wrong size is not found by building: an enormous one takes the machine's memory first, a negative or an odd one fails
somewhere inside a layer. transformers checks types, not sizes.

vLLM: model_executor/models/registry.py, qwen3.py, qwen2.py, llama.py; there wrong sizes fail where they are used
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from folovllm.errors import ModelLoadError
from folovllm.hf_config import check_numbers
from folovllm.model_files import readable_errors
from folovllm.models.decoder import DecoderSpec
from folovllm.utils.checks import check_bool, check_float, check_int, wrong


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
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _llama,
}
# config.json's "model_type", by which transformers chooses, -> the architecture.
_BY_MODEL_TYPE = {name.removesuffix("ForCausalLM").lower(): name for name in SWITCHES}

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
)  # fmt: skip
_BOOLEANS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window")
_ATTENTION = ("full_attention", "sliding_attention")


def decoder_spec(config: Any) -> DecoderSpec:
    """The decoder of a transformers configuration: by its architectures, or by model_type where it names none.

    Raises:
        ModelLoadError: none of its architectures is known (the text lists those that are), or model_type is of another;
            a field is wrong, or asks for what the decoder does not do, by the field's name.
    """
    switches = _switches_of(config)
    with readable_errors(config.name_or_path or config.model_type):
        check_config(config)
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


def _switches_of(config: Any) -> Callable[[Any], dict[str, bool]]:
    own = _BY_MODEL_TYPE.get(config.model_type)
    names = config.architectures or ([own] if own else [])
    for name in names:
        if name not in SWITCHES:
            continue
        if own is None or SWITCHES[own] is not SWITCHES[name]:
            raise ModelLoadError(f"architectures {names} and model_type {config.model_type!r} contradict each other")
        return SWITCHES[name]
    raise ModelLoadError(
        f"architectures {names} of model_type {config.model_type!r} are not supported; known: {', '.join(SWITCHES)}"
    )


def _sliding_window(config: Any) -> int | None:
    """How many tokens back attention reaches in some layer; None where every layer sees all of them."""
    if not getattr(config, "use_sliding_window", True):
        return None
    kinds = getattr(config, "layer_types", None)  # Qwen's configurations have it, Mistral's slides in every layer
    return getattr(config, "sliding_window", None) if kinds is None or "sliding_attention" in kinds else None


def check_config(config: Any) -> None:
    """Check the fields of a transformers configuration that DecoderSpec reads.

    Raises:
        ValueError: a field has a wrong type or size, or asks for what this decoder does not do.
    """
    check_numbers(config)
    for name in _SIZES:
        check_int(name, getattr(config, name), 1)
    for name in _BOOLEANS:
        if hasattr(config, name):
            check_bool(name, getattr(config, name))
    if config.num_attention_heads % config.num_key_value_heads:
        must = f"divide num_attention_heads ({config.num_attention_heads})"
        raise wrong("num_key_value_heads", must, config.num_key_value_heads)
    _check_head(config)
    check_float("rms_norm_eps", config.rms_norm_eps)
    if config.hidden_act not in ("silu", "swish"):  # two names of one function
        raise wrong("hidden_act", f"be 'silu' for {config.model_type}", config.hidden_act)
    _check_rope(config.rope_parameters)
    _check_layers(config)


def _check_head(config: Any) -> None:
    head = getattr(config, "head_dim", None)
    if head is None:
        head, rest = divmod(config.hidden_size, config.num_attention_heads)
        if rest:
            must = f"be a multiple of num_attention_heads ({config.num_attention_heads}) where head_dim is not given"
            raise wrong("hidden_size", must, config.hidden_size)
    check_int("head_dim", head, 1)
    if head % 2:
        raise wrong("head_dim", "be even: RoPE turns pairs of dimensions", head)


def _check_rope(rope: Any) -> None:
    """The entries of rope_parameters that RotaryEmbedding cannot do without, or does not know."""
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        raise wrong("rope_parameters", "have a rope_theta", rope)
    check_float("rope_theta", rope["rope_theta"])
    if rope.get("partial_rotary_factor") not in (None, 1.0):
        raise wrong("partial_rotary_factor", "be 1: heads are turned whole", rope["partial_rotary_factor"])


def _check_layers(config: Any) -> None:
    if getattr(config, "is_heterogeneous", False):
        raise ValueError("per_layer_config must not be given: all layers have one shape")
    kinds = getattr(config, "layer_types", None) or []
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= set(_ATTENTION):
        raise wrong("layer_types", f"be a list of {' and '.join(map(repr, _ATTENTION))}", kinds)
    if getattr(config, "sliding_window", None) is not None:
        check_int("sliding_window", config.sliding_window, 1)
    elif "sliding_attention" in kinds:
        raise wrong("sliding_window", "be given, since layer_types has 'sliding_attention'", None)
