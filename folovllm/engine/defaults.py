"""What the entry points choose where the user does not, and engine options under vLLM's names.

    scheduling_policy="priority"    is policy="priority"
    pipeline_parallel_size=1        says what is so anyway: taken
    pipeline_parallel_size=2        is refused by name: never taken and ignored
    max_num_seqs=None               is not given: the default holds

The defaults of the dataclasses in config.py stay as they are: code that builds those gets what they say.

vLLM: engine/arg_utils.py
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from folovllm.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from folovllm.engine.hub import hub_folder
from folovllm.utils.checks import wrong

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
    tokenizer = folder if options.get("tokenizer") is None else config.model_config.tokenizer
    config.model_config = replace(config.model_config, model=folder, tokenizer=tokenizer)
    return config


HUB = ("revision", "download_dir")
"""Which version of a model of the hub, and where it is kept."""
SPELLINGS = {"scheduling_policy": "policy", "num_gpu_blocks_override": "num_kv_blocks"}

# vLLM's options that the engine does not have -> the values that say so.
_WITHOUT = (
    "code_revision", "tokenizer_revision", "hf_overrides", "distributed_executor_backend", "compilation_config",
    "kv_transfer_config", "limit_mm_per_prompt", "hf_token", "logits_processors",
)  # fmt: skip
_OFF = (
    "enable_lora", "enable_expert_parallel", "enable_sleep_mode", "disable_custom_all_reduce", "calculate_kv_scales",
    "enable_prompt_embeds", "disable_sliding_window",
)  # fmt: skip
NEUTRAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("pipeline_parallel_size", "data_parallel_size"), (None, 1)),
    **dict.fromkeys(_WITHOUT, (None,)),
    **dict.fromkeys(_OFF, (None, False)),
    **dict.fromkeys(("runner", "worker_cls", "config_format"), (None, "auto")),
    "task": (None, "auto", "generate"),
    "prefix_caching_hash_algo": (None, "sha256"),
    "cpu_offload_gb": (None, 0),
    "disable_log_stats": (None, False, True),  # statistics are there when they are asked for, and are never logged
    "max_lora_rank": (None, 16),
}
LAYERS = (ModelConfig, CacheConfig, SchedulerConfig, ParallelConfig)
_OURS = {field.name for layer in LAYERS for field in fields(layer)}
_OURS.add("speculative_config")


def engine_options(given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of LLM() under the names that config.py has.

    Raises:
        ValueError: two spellings of one option that differ, or a value of an option that the engine does not have.
    """
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name in NEUTRAL:
            _check_neutral(name, value)
            continue
        ours = SPELLINGS.get(name, name)
        if name == "model_impl" and value == "vllm":
            value = "folovllm"  # the engine's own
        if value is None and ours in _OURS:
            continue
        if ours in options and options[ours] != value:
            raise ValueError(f"{name} must agree with {ours}, got {value!r} and {options[ours]!r}; give one of them")
        options[ours] = value
    return options


def _check_neutral(name: str, value: object) -> None:
    accepted = NEUTRAL[name]
    if not any(value is choice or (value == choice and type(value) is type(choice)) for choice in accepted):
        must = " or ".join(repr(choice) for choice in accepted)
        raise wrong(name, f"be {must}", value, "the engine does not have it: leave it out")
