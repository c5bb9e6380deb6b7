"""What the entry points choose where the user does not, and engine options under vLLM's names.

    scheduling_policy="priority"    is policy="priority"
    max_num_seqs=None               is not given: the default holds
    pipeline_parallel_size=2        is vLLM's alone: see vllm_names.py

The defaults of the dataclasses in config.py stay as they are: code that builds those gets what they say.

vLLM: engine/arg_utils.py
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from folovllm.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from folovllm.lora.config import LoRAConfig
from folovllm.model_loader.hub import hub_folder
from folovllm.utils.logging import init_logger
from folovllm.vllm_names import arguments, check_argument

DEFAULTS: dict[str, Any] = {"enable_chunked_prefill": True, "enable_prefix_caching": True}


def config_for_llm(model: str | None, **kwargs: Any) -> EngineConfig:
    """`model` None is the embedded one; the keywords are fields of the configuration's layers, or vLLM's names.

    Raises:
        TypeError: an unknown keyword. ValueError: a value out of its range; see also engine_options().
    """
    where = {name: kwargs.pop(name, None) for name in HUB}
    options = {**DEFAULTS, **engine_options(kwargs)}
    config = EngineConfig.from_kwargs(model=model, **options)  # a wrong value is refused before a hub is asked
    folder = hub_folder(config.model_config.model, **where)
    config.model_config = replace(config.model_config, model=folder)
    return config


HUB = ("revision", "download_dir", "hf_token")
"""Which version of a model of the hub, where it is kept, and who asks."""
SPELLINGS = {
    "scheduling_policy": "policy", "num_gpu_blocks_override": "num_kv_blocks",
    "device_memory_utilization": "gpu_memory_utilization",
}  # fmt: skip
# vLLM's words for what is a value here, too; None is the default.
_VALUES: dict[str, dict[Any, Any]] = {
    "model_impl": {"vllm": "folovllm"},
    "load_format": dict.fromkeys(("safetensors", "hf"), "auto"),
    "performance_mode": {"balanced": None},
    "max_model_len": {-1: None},
}
_DRAFTS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
LAYERS = (ModelConfig, CacheConfig, SchedulerConfig, ParallelConfig, LoRAConfig)
_OURS = {*(field.name for layer in LAYERS for field in fields(layer)), "speculative_config", *HUB}


def engine_options(given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of LLM() under the names that config.py has. One line in the log names what changes nothing here.

    Raises:
        ValueError: two spellings of one option that differ, or a value of an option that the engine does not have.
    """
    options: dict[str, Any] = {}
    idle: dict[str, str] = {}
    drafts = {_DRAFTS[name]: value for name, value in given.items() if name in _DRAFTS and value is not None}
    if drafts:
        given = {**given, "speculative_config": {**(given.get("speculative_config") or {}), **drafts}}
    for name, value in given.items():
        ours = SPELLINGS.get(name, name)
        if ours not in _OURS and name in arguments():
            if name not in _DRAFTS and (reason := check_argument(name, value)):
                idle[name] = reason
            continue
        if isinstance(value, (str, int)):
            value = _VALUES.get(name, {}).get(value, value)
        if value is None and ours in _OURS:
            continue
        if ours in options and options[ours] != value:
            raise ValueError(f"{name} must agree with {ours}, got {value!r} and {options[ours]!r}; give one of them")
        options[ours] = value
    if idle:
        said = "; ".join(f"{name} ({reason})" for name, reason in idle.items())
        init_logger(__name__).warning("without effect here: %s", said)
    return options
