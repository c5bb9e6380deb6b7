"""What a model's makers wrote down: config.json, as transformers reads it.

vLLM: transformers_utils/config.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from folovllm.config import ModelConfig
from folovllm.model_loader.model_files import readable_errors, resolve_model_path

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def load_hf_config(model_config: ModelConfig) -> PreTrainedConfig:
    """The model's configuration. Raises ModelLoadError: there is none, or it is damaged."""
    from transformers import AutoConfig

    path = resolve_model_path(model_config.model)
    with readable_errors(model_config.model):
        return AutoConfig.from_pretrained(path, trust_remote_code=model_config.trust_remote_code)  # type: ignore[no-any-return]
