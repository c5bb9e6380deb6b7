"""Which decoder a configuration asks for: architecture (config.json's "architectures") -> the switches of our decoder.
What has none is computed by transformers' own code (transformers_model.py).

    Qwen3             no biases; q and k are normalised per head
    Qwen2, Qwen2.5, MiMo    biases on q, k and v
    Llama 2 and 3.x, Mistral    the plain decoder; Mistral's layers have a window, in Qwen some may
    Qwen3-MoE, Qwen2-MoE, Mixtral    Qwen3, Qwen2 and Mistral with experts; Qwen2-MoE has a shared one beside them

vLLM: model_executor/models/registry.py, qwen3.py, qwen2.py, llama.py, qwen3_moe.py, qwen2_moe.py, mixtral.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from folovllm.errors import ModelLoadError
from folovllm.layers.moe import ExpertsSpec
from folovllm.model_loader.hf_config_checks import check_decoder_config
from folovllm.model_loader.model_files import readable_errors
from folovllm.models.decoder import DecoderSpec
from folovllm.models.transformers_model import TransformersSpec, transformers_spec
from folovllm.utils.checks import wrong


def _qwen3(config: Any) -> dict[str, Any]:
    return {"qk_norm": True, "qkv_bias": config.attention_bias, "o_bias": config.attention_bias}


def _qwen2(config: Any) -> dict[str, Any]:
    return {"qkv_bias": getattr(config, "qkv_bias", True)}  # Qwen2-MoE's configuration has the field


def _llama(config: Any) -> dict[str, Any]:
    bias = getattr(config, "attention_bias", False)  # Mistral's configuration has neither field
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": getattr(config, "mlp_bias", False)}


def _qwen_experts(config: Any) -> ExpertsSpec:
    sparse = (i for i in range(config.num_hidden_layers) if (i + 1) % config.decoder_sparse_step == 0)
    return ExpertsSpec(
        num_experts=config.num_experts,
        top_k=config.num_experts_per_tok,
        size=config.moe_intermediate_size,
        renormalize=config.norm_topk_prob,
        layers=frozenset(sparse) - frozenset(config.mlp_only_layers),
        shared_size=getattr(config, "shared_expert_intermediate_size", 0),
    )


def _qwen3_moe(config: Any) -> dict[str, Any]:
    return _qwen3(config) | {"experts": _qwen_experts(config)}


def _qwen2_moe(config: Any) -> dict[str, Any]:
    return _qwen2(config) | {"experts": _qwen_experts(config)}


def _mixtral(config: Any) -> dict[str, Any]:
    experts = ExpertsSpec(
        num_experts=config.num_local_experts,
        top_k=config.num_experts_per_tok,
        size=config.intermediate_size,
        renormalize=True,
        layers=frozenset(range(config.num_hidden_layers)),
    )
    names = ((".mlp.", ".block_sparse_moe."), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
    return _llama(config) | {"experts": experts, "names": names}


SWITCHES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Qwen3ForCausalLM": _qwen3,
    "Qwen2ForCausalLM": _qwen2,
    "MiMoForCausalLM": _qwen2,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _llama,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen2MoeForCausalLM": _qwen2_moe,
    "MixtralForCausalLM": _mixtral,
}
# config.json's "model_type", by which transformers chooses, -> the architecture.
_BY_MODEL_TYPE = {name.removesuffix("ForCausalLM").replace("Moe", "_moe").lower(): name for name in SWITCHES}


ModelSpec = DecoderSpec | TransformersSpec


def model_spec(model_impl: str, config: Any, max_model_len: int) -> ModelSpec:
    """Of the model that computes a transformers configuration: ours where it can be, with model_impl="auto".

    Raises:
        ModelLoadError: see decoder_spec() and transformers_spec().
    """
    if model_impl == "auto":
        ours = config.model_type in _BY_MODEL_TYPE or set(config.architectures or ()) & set(SWITCHES)
        model_impl = "folovllm" if ours else "transformers"
    if model_impl == "folovllm":
        spec = decoder_spec(config).within(max_model_len)
        if spec.has_extras and config.model_type == "llama":
            must = f"not be below max_model_len ({max_model_len}) for model_type 'llama', whose layers have no windows"
            raise ModelLoadError(str(wrong("sliding_window", must, config.sliding_window)))
        return spec
    return transformers_spec(config, max_model_len)


def decoder_spec(config: Any) -> DecoderSpec:
    """The decoder of a transformers configuration: by its architectures, or by model_type where it names none.

    Raises:
        ModelLoadError: none of its architectures is known (the text lists those that are), or model_type is of another;
            a field is wrong, or asks for what the decoder does not do, by the field's name.
    """
    switches = _switches_of(config)
    with readable_errors(config.name_or_path or config.model_type):
        check_decoder_config(config)
    rope = dict(config.rope_parameters)
    rope["original_max_position_embeddings"] = (
        rope.get("original_max_position_embeddings") or config.max_position_embeddings
    )
    return DecoderSpec(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers, num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        rms_norm_eps=config.rms_norm_eps, rope=rope, tie_word_embeddings=config.tie_word_embeddings,
        windows=_windows(config), pools=getattr(config, "pooling_task", None) is not None, **switches(config),
    )  # fmt: skip


def _switches_of(config: Any) -> Callable[[Any], dict[str, Any]]:
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


def _windows(config: Any) -> tuple[int | None, ...]:
    """DecoderSpec.windows, before it is known how long a sequence may get."""
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return ()
    # Qwen's configurations have the layers' kinds, Mistral's window is every layer's.
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
