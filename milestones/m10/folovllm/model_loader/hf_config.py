"""What a model's makers wrote down: config.json and generation_config.json, as transformers reads them.

vLLM: transformers_utils/config.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from folovllm.config import ModelConfig
from folovllm.model_loader.model_files import readable_errors, resolve_model_path

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

KNOWN_AS = {"mimo": "qwen2"}


def load_hf_config(model_config: ModelConfig) -> PreTrainedConfig:
    """The model's configuration. Raises ModelLoadError: there is none, or it is damaged."""
    path = resolve_model_path(model_config.model)
    with readable_errors(model_config.model):
        return read_config(path, trust_remote_code=model_config.trust_remote_code)


def read_config(path: str, *, trust_remote_code: bool) -> PreTrainedConfig:
    """config.json by transformers' class for it. Of a model_type that transformers lacks, by that of KNOWN_AS."""
    from transformers import AutoConfig, PreTrainedConfig

    written, _ = PreTrainedConfig.get_config_dict(path)
    if (known_as := KNOWN_AS.get(written.get("model_type", ""))) is None:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)  # type: ignore[no-any-return]
    return AutoConfig.for_model(**{**written, "model_type": known_as})  # type: ignore[no-any-return]


@dataclass(frozen=True)
class GenerationDefaults:
    """What the model's makers say about generating: here, the ids that end a text."""

    eos_token_ids: frozenset[int]


def load_generation_config(model_config: ModelConfig) -> GenerationDefaults:
    """From generation_config.json; where there is none, or it names no EOS, from config.json.

    A chat model has several ends: one for the turn, one for the text. Missing one of them, it would talk on
    in both roles.
    """
    from transformers import GenerationConfig

    hf_config = load_hf_config(model_config)
    try:
        eos = GenerationConfig.from_pretrained(resolve_model_path(model_config.model)).eos_token_id
    except OSError:  # there is no such file
        eos = None
    if eos is None:
        eos = getattr(hf_config, "eos_token_id", None)
    return GenerationDefaults(frozenset([] if eos is None else eos if isinstance(eos, list) else [eos]))
