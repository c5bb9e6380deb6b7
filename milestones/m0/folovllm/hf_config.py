"""What a model's makers wrote down: config.json, as transformers reads it.

vLLM: transformers_utils/config.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from folovllm.config import ModelConfig
from folovllm.model_files import hub_hint, readable_errors, resolve_model_path

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def load_hf_config(model_config: ModelConfig) -> PreTrainedConfig:
    """The model's configuration.

    Raises:
        ModelLoadError: it is damaged, a field has a wrong type, or the weights are quantized.
    """
    from transformers import AutoConfig

    path = resolve_model_path(model_config.model, weights=model_config.load_format != "dummy")
    with readable_errors(model_config.model, hint=hub_hint(path)):
        hf_config = AutoConfig.from_pretrained(path, trust_remote_code=model_config.trust_remote_code)
        if settings := getattr(hf_config, "quantization_config", None):
            raise ValueError(
                f"its weights are quantized with {settings.get('quant_method')!r} "
                "(quantization_config in config.json), which is not supported; use the model that it was made from"
            )
    return hf_config  # type: ignore[no-any-return]
