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


def get_model_class(config: Any) -> type[DecoderForCausalLM]:
    """The class for a transformers configuration.

    Raises:
        ModelLoadError: none of its architectures is known; the text lists those that are.
    """
    names = config.architectures or []
    for name in names:
        if name in MODELS:
            return MODELS[name]
    raise ModelLoadError(
        f"architectures {names} of model_type {config.model_type!r} are not supported; known: {', '.join(MODELS)}"
    )
