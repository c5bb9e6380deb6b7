"""Architecture name (config.json's "architectures") -> our class. vLLM: model_executor/models/registry.py"""

from __future__ import annotations

from typing import Any

from folovllm.errors import ModelLoadError
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.llama import LlamaForCausalLM
from folovllm.models.qwen2 import Qwen2ForCausalLM
from folovllm.models.qwen3 import Qwen3ForCausalLM

MODELS: dict[str, type[DecoderForCausalLM]] = {
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": LlamaForCausalLM,
}
# config.json's "model_type", by which transformers chooses, -> the architecture.
_BY_MODEL_TYPE = {name.removesuffix("ForCausalLM").lower(): name for name in MODELS}


def get_model_class(config: Any) -> type[DecoderForCausalLM]:
    """The class for a transformers configuration: by its architectures, or by model_type where it names none.

    Raises:
        ModelLoadError: none of its architectures is known (the text lists those that are), or model_type is of another.
    """
    own = _BY_MODEL_TYPE.get(config.model_type)
    names = config.architectures or ([own] if own else [])
    for name in names:
        if name not in MODELS:
            continue
        if own is None or MODELS[own] is not MODELS[name]:
            raise ModelLoadError(f"architectures {names} and model_type {config.model_type!r} contradict each other")
        return MODELS[name]
    raise ModelLoadError(
        f"architectures {names} of model_type {config.model_type!r} are not supported; known: {', '.join(MODELS)}"
    )
