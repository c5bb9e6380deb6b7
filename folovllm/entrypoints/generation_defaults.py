"""Sampling defaults of a checkpoint: its generation_config.json as sampling parameters.

vLLM: config/model.py (get_diff_sampling_param)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from folovllm.config import ModelConfig
from folovllm.model_loader.hf_config import read_settings
from folovllm.model_loader.model_files import readable_errors, resolve_model_path
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import wrong
from folovllm.utils.logging import init_logger

_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def load_generation_defaults(
    model_config: ModelConfig, source: str = "auto", overrides: dict[str, Any] | None = None
) -> dict[str, Any]:
    """{field of SamplingParams: value}, of the fields that the checkpoint names.

    source: "auto" is the checkpoint, "vllm" none, and anything else a folder with a generation_config.json.
    overrides: values that count more, by the file's names or by those of SamplingParams.

    Raises:
        ModelLoadError: the file is damaged, or a value is out of its range. ValueError: a wrong source or name.
    """
    theirs_of = {ours: theirs for theirs, ours in _NAMES.items()}
    overrides = {theirs_of.get(name, name): value for name, value in (overrides or {}).items()}
    if unknown := [name for name in overrides if name not in _NAMES]:
        raise wrong("override_generation_config", f"have names among {', '.join(_NAMES)}", unknown[0])
    is_folder = source not in ("auto", "vllm")
    if is_folder and not (Path(source) / "generation_config.json").is_file():
        raise wrong("generation_config", "be 'auto', 'vllm' or a folder with a generation_config.json", source)
    with readable_errors(model_config.model):
        path = source if is_folder else resolve_model_path(model_config.model, weights=False)
        written = None if source == "vllm" else read_settings(path, "generation_config.json")
        written = {**(written or {}), **overrides}
        found = {ours: written[theirs] for theirs, ours in _NAMES.items() if written.get(theirs) is not None}
        SamplingParams(**found)
    if found:
        text = ", ".join(f"{name}={value}" for name, value in found.items())
        init_logger(__name__).info("%s: sampling defaults of its generation_config.json: %s", model_config.model, text)
    return found
