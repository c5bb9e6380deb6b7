"""Validation of a stranger's config.json, before anything is built from it.

transformers checks the types of most fields and no sizes. A wrong size is not found by building either: an enormous one
takes the machine's memory first, a negative or an odd one fails somewhere inside a layer. So each field that the engine
reads is checked here, and a ValueError names it.

vLLM: none; there wrong sizes fail where they are used
"""

from __future__ import annotations

import math
from typing import Any

from folovllm.model_loader.quant_scheme import read_scheme
from folovllm.utils.checks import check_float, check_int, check_str, wrong

# No model comes near. A number far beyond would be counted out layer by layer before anything could be compared.
MAX_LAYERS = 1000
# A larger number is no size: products of a few of them overflow wherever elements are counted.
MAX_SIZE = 2**40
MAX_EXPERTS = 100_000  # of a model in all its layers; each is a few modules

# For other names, such as GPT-2's, transformers answers to these as well.
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
)  # fmt: skip
_SIZES_OR_NONE = ("head_dim", "sliding_window")  # 0 where some model has no such thing
NOT_NEGATIVE = math.nextafter(0, -1)
# What each number must be greater than. Scores and logits are multiplied with, divided by or capped at positive ones.
_ABOVE = dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), NOT_NEGATIVE) | dict.fromkeys(
    (
        "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling", "query_pre_attn_scalar",
        "attention_multiplier", "residual_multiplier", "embedding_multiplier",
    ), 0,
)  # fmt: skip
# Of rope_parameters. With a base of 1 all points turn alike; of the last four, 0 selects the default.
_ROPE_ABOVE = {
    "rope_theta": 1, "factor": 0, "low_freq_factor": 0, "high_freq_factor": 0, "attention_factor": 0,
    "partial_rotary_factor": 0,
} | dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), NOT_NEGATIVE)  # fmt: skip
_ROPE_NEEDED = dict.fromkeys(("linear", "dynamic", "yarn"), ("factor",)) | {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor")
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_ATTENTION = ("full_attention", "sliding_attention")


def check_as_written(written: dict[str, Any]) -> None:
    """Check the fields of a config.json whose mistakes transformers would report unclearly, or not at all."""
    for part in (written, written.get("text_config")):
        if not isinstance(part, dict):
            continue
        for name in ("rope_parameters", "rope_scaling"):
            _check_ropes(part.get(name))
        if part.get("compression_config") is not None:
            raise ValueError("compression_config in config.json is an old name of quantization_config: rename it")
        if part.get("quantization_config") is not None:
            read_scheme(part["quantization_config"])
        for name in _SIZES:  # of these some configurations compute others
            if isinstance(part.get(name), int):
                _check_size(name, part[name])
        _check_names("layer_types", "be a list of names", part)
    if written.get("model_type") is not None:
        check_str("model_type", written["model_type"])
    _check_names("architectures", "be a list of class names", written)
    for name in ("dtype", "torch_dtype"):
        _check_dtype(name, written.get(name))


def _check_names(name: str, must: str, written: dict[str, Any]) -> None:
    names = written.get(name)
    if names is not None and not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
        raise wrong(name, must, names)


def _check_dtype(name: str, value: object) -> None:
    """A name that torch has, of numbers that can be computed with. A model of several parts may have a dict of them."""
    import torch

    if value is None or isinstance(value, dict):
        return
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise wrong(name, "be float32, bfloat16 or float16", value)


def check_numbers(config: Any) -> None:
    """Refuse a number that nothing can be computed with, wherever one is given.

    Raises:
        ValueError: such a number, in a configuration as transformers read it: all of RoPE is in rope_parameters.
    """
    # A model may have a size for each layer: in a list, or in configurations of their own.
    if not getattr(config, "is_heterogeneous", False):
        for name in (*_SIZES, "max_position_embeddings", *_SIZES_OR_NONE):
            if isinstance(size := getattr(config, name, None), int):
                _check_size(name, size, 0 if name in _SIZES_OR_NONE else 1)
    for name, least in _ABOVE.items():
        _check_above(name, getattr(config, name, None), least)
    rope = getattr(config, "rope_parameters", None) or {}
    _check_ropes(rope, getattr(config, "max_position_embeddings", None))


def _check_size(name: str, value: Any, least: int = 1) -> None:
    check_int(name, value, least)
    if value > (most := MAX_LAYERS if name == "num_hidden_layers" else MAX_SIZE):
        raise wrong(name, f"be at most {most}", value)


def _check_above(name: str, value: Any, least: float) -> None:
    if value is not None and check_float(name, value) <= least:
        must = {NOT_NEGATIVE: "not be negative", 0: "be positive"}
        raise wrong(name, must.get(least, f"be greater than {least}"), value)


def _check_ropes(rope: Any, length: int | None = None) -> None:
    """One rope_parameters, or one for each kind of layer."""
    for part in (rope, *rope.values()) if isinstance(rope, dict) else ():
        if isinstance(part, dict):
            _check_rope(part, length)


def _check_rope(rope: dict[str, Any], length: int | None) -> None:
    for name in _ROPE_NEEDED.get(str(rope.get("rope_type")), ()):
        check_float(f"rope_parameters['{name}']", rope.get(name))
    for name, least in _ROPE_ABOVE.items():  # many files have the base outside
        _check_above(name if name == "rope_theta" else f"rope_parameters['{name}']", rope.get(name), least)
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if low is not None and high is not None and high <= low:
        raise wrong("rope_parameters['high_freq_factor']", f"be greater than low_freq_factor ({low})", high)
    original = rope.get("original_max_position_embeddings")
    if original is not None:
        _check_size("original_max_position_embeddings", original)
    if (shortest := min(original or MAX_SIZE, length or MAX_SIZE)) * (rope.get("factor") or 1) < 1:
        raise wrong("rope_parameters['factor']", f"leave something of a length of {shortest}", rope["factor"])


def check_decoder_config(config: Any) -> None:
    """Check the fields of a transformers configuration that DecoderSpec reads.

    Raises:
        ValueError: a field has a wrong type or size, or asks for what our decoder does not do.
    """
    check_numbers(config)
    _check_groups(config.num_attention_heads, config.num_key_value_heads)
    _check_head(config)
    if config.hidden_act not in ("silu", "swish"):  # two names of one function
        raise wrong("hidden_act", f"be 'silu' for {config.model_type}", config.hidden_act)
    rope = config.rope_parameters
    if not isinstance(rope, dict) or rope.get("rope_theta") is None:
        raise wrong("rope_parameters", "have a rope_theta", rope)
    if rope.get("partial_rotary_factor") not in (None, 1.0):
        raise wrong("partial_rotary_factor", "be 1: heads are turned whole", rope["partial_rotary_factor"])
    _check_layers(config)
    if hasattr(config, "num_experts_per_tok"):
        _check_experts(config)


def check_any_config(config: Any) -> None:
    """Check what the code of transformers reads, by the names that many of its decoders have in common.

    Raises:
        ValueError: a field is no such number, or contradicts another.
    """
    if getattr(config, "is_heterogeneous", False):
        return
    heads, kv_heads = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(kv_heads, int):
        _check_groups(heads, kv_heads)
    for name, value in {**vars(config), "head_dim": getattr(config, "head_dim", None)}.items():
        # Some are flags: LFM2's block_auto_adjust_ff_dim.
        if name.endswith(("_dim", "_rank", "_size")) and type(value) is int:
            check_int(name, value, int(name == "head_dim"))
    if any(name in vars(config) for name in _EXPERTS) and hasattr(config, "num_experts_per_tok"):
        _check_experts(config)
    if unknown := sorted(set(map(str, getattr(config, "layer_types", None) or ())).difference(_ATTENTION)):
        raise ValueError(f"it has layers of {', '.join(unknown)}; layer_types may name {' and '.join(_ATTENTION)}")


def _check_groups(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise wrong("num_key_value_heads", f"divide num_attention_heads ({heads})", kv_heads)


def _check_experts(config: Any) -> None:
    """Of a mixture of experts: Qwen's names, Mixtral's, whose experts have intermediate_size, or DeepSeek's."""
    qwens = config.model_type.startswith("qwen")  # some of them are kept by Mixtral's name
    name = next((name for name in _EXPERTS if name in vars(config) and not qwens), "num_experts")
    check_int(name, count := getattr(config, name, None), 1)
    if count * config.num_hidden_layers > MAX_EXPERTS:
        raise wrong(name, f"be at most {MAX_EXPERTS // config.num_hidden_layers} in so many layers", count)
    check_int("num_experts_per_tok", config.num_experts_per_tok, 1)
    if config.num_experts_per_tok > count:
        raise wrong("num_experts_per_tok", f"be at most {name} ({count})", config.num_experts_per_tok)
    for size in ("moe_intermediate_size", "shared_expert_intermediate_size"):
        if hasattr(config, size):
            _check_size(size, getattr(config, size))
    if hasattr(config, "decoder_sparse_step"):
        check_int("decoder_sparse_step", config.decoder_sparse_step, 1)
        dense = config.mlp_only_layers
        if not isinstance(dense, list) or not set(map(str, dense)) <= set(map(str, range(config.num_hidden_layers))):
            raise wrong("mlp_only_layers", f"be a list of numbers below {config.num_hidden_layers}", dense)


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


def _check_layers(config: Any) -> None:
    if getattr(config, "is_heterogeneous", False):
        raise ValueError("per_layer_config must not be given: all layers have one shape")
    kinds = getattr(config, "layer_types", None) or []
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= set(_ATTENTION):
        raise wrong("layer_types", f"be a list of {' and '.join(map(repr, _ATTENTION))}", kinds)
    if getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True):
        check_int("sliding_window", config.sliding_window, 1)
    elif "sliding_attention" in kinds:
        raise wrong("sliding_window", "be given, since layer_types has 'sliding_attention'", None)
