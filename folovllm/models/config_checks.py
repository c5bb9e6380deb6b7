"""Refuses a configuration that the decoder cannot have, by the field's name, before anything is built from it.

A wrong size is not found by building: an enormous one takes the machine's memory first, a negative or an odd one fails
somewhere inside a layer. transformers checks types, not sizes.

vLLM: none; sizes fail where they are used
"""

from __future__ import annotations

from typing import Any

from folovllm.hf_config import check_numbers
from folovllm.utils.checks import check_bool, check_float, check_int, wrong

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
)  # fmt: skip
_SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window")
_ATTENTION = ("full_attention", "sliding_attention")


def check_config(config: Any) -> None:
    """Check the fields of a transformers configuration that DecoderSpec reads.

    Raises:
        ValueError: a field has a wrong type or size, or asks for what this decoder does not do.
    """
    check_numbers(config)
    for name in _SIZES:
        check_int(name, getattr(config, name), 1)
    for name in _SWITCHES:
        if hasattr(config, name):
            check_bool(name, getattr(config, name))
    if config.num_attention_heads % config.num_key_value_heads:
        must = f"divide num_attention_heads ({config.num_attention_heads})"
        raise wrong("num_key_value_heads", must, config.num_key_value_heads)
    _check_head(config)
    check_float("rms_norm_eps", config.rms_norm_eps)
    if config.hidden_act != "silu":
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
