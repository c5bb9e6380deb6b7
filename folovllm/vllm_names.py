"""What users of vLLM type: every name that vLLM 0.32 knows is taken with its meaning, or named with the way out.

    pipeline_parallel_size=1        says what is so anyway: taken
    compilation_config={"mode": 3}  changes nothing here: taken, and one line says so
    kv_transfer_config={...}        would change something: refused by name

vllm_names.json has the names, with vLLM's own defaults; `python -m workshop.vllm_names` writes it.

vLLM: engine/arg_utils.py, entrypoints/launchers/cli_args.py
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from folovllm.utils.checks import wrong

HAS_NOT = "vLLM has this, FoloVLLM does not"
_NO_IMAGES = "models read text alone"
_NOTHING_COMPILED = "nothing is compiled by torch; enforce_eager turns CUDA graphs off"
_NOT_LOGGED = "statistics and prompts are never logged"
# Whatever their value, nothing is different here, because of this.
WITHOUT_EFFECT = {
    **dict.fromkeys(("compilation_config", "optimization_level", "max_seq_len_to_capture"), _NOTHING_COMPILED),
    **dict.fromkeys(("disable_log_stats", "disable_log_requests", "aggregate_engine_logging"), _NOT_LOGGED),
    **dict.fromkeys(("max_log_len", "enable_log_deltas"), _NOT_LOGGED),
    **dict.fromkeys(("limit_mm_per_prompt", "mm_processor_kwargs", "mm_processor_cache_gb"), _NO_IMAGES),
    **dict.fromkeys(("language_model_only", "skip_mm_profiling", "disable_chunked_mm_input"), _NO_IMAGES),
    "served_model_name": "`serve --served-model-name` gives the model a name",
    "guided_decoding_backend": "forms have one backend",
    "disable_custom_all_reduce": "ranks have one way to add up",
    "disable_cascade_attn": "there is no cascade attention",
    "enable_flashinfer_autotune": "FlashInfer is not used",
    "safetensors_load_strategy": "files are mapped into memory",
    "max_parallel_loading_workers": "each rank loads its own part",
    "use_tqdm_on_load": "loading shows no bar",
    "fail_on_environ_validation": "vLLM's environment variables are not read",
}
# Values that say what is so anyway, where it is not vLLM's default that does.
_SO_ANYWAY: dict[str, tuple[object, ...]] = {
    "distributed_executor_backend": ("mp", "uni"),
    "api_server_count": (1,),
    "chat_template_content_format": ("auto", "string"),
    **dict.fromkeys(("enable_prompt_tokens_details", "enable_server_load_tracking", "enable_offline_docs"), (True,)),
    **dict.fromkeys(
        ("enable_tokenizer_info_endpoint", "enable_auto_tool_choice", "exclude_tools_when_tool_choice_none"), (True,)
    ),
    "fingerprint_mode": ("none",),
    "shutdown_timeout": (),
    "scheduler_reserve_full_isl": (),
    "task": ("auto", "generate"),
    "runner": ("auto", "generate"),
    "structured_outputs_config": ({"backend": "auto"}, {"backend": "xgrammar"}, {"backend": "guidance"}),
}
# What vLLM had before 0.32, and is still typed.
_EARLIER: dict[str, dict[str, Any]] = {
    "task": {"kind": "text"},
    "calculate_kv_scales": {"kind": "switch", "default": False},
    "disable_log_requests": {"kind": "switch"},
    "guided_decoding_backend": {"kind": "text"},
    "max_seq_len_to_capture": {"kind": "int"},
    "rope_scaling": {"kind": "json"},
    "rope_theta": {"kind": "float"},
}
# What to do instead, by a pattern that the name has; the first that fits.
_INSTEAD = {
    r"lora": "there are no adapters",
    r"mm_|_mm|media|video|image": _NO_IMAGES,
    r"^(encode|embed|classify|score|pool)|pooler|pooling|^convert|^runner|^task": "models generate text alone",
    r"pipeline|context_parallel|^dcp|^cp_": "tensor_parallel_size cuts a model over ranks",
    r"expert|eplb|all2all|^moe_|dbo|ubatch|_ep$|_ep_": "tensor_parallel_size cuts experts, too",
    r"data_parallel|^dp_|nnodes|node_rank|master_|api_server|headless|grpc": "`serve --replicas` runs several engines",
    r"kv_transfer|kv_event|kv_offload|kv_hints|offload|^ec_|release_kv": "weights and cache stay with one engine",
    r"log_requests|log_outputs|access_log": "`serve --uvicorn-log-level info` writes a line for each request",
    r"logging_config|^log_": "FOLOVLLM_LOG_LEVEL sets the level",
    r"otlp|trace|profile|nvtx|_metrics|iteration_details": "`--trace FILE` records steps, /metrics has counters",
    r"logits_processor": "register_logits_processor(name) takes a class, and SamplingParams(extra_args) asks for it",
    r"plugin|_cls$|class_overrides|^middleware": "no option loads code: write a program around LLM or AsyncLLM",
    r"^ssl_|ssl_refresh|^h11_": "put a proxy in front",
    r"^rope_": "hf_overrides changes a model's config.json",
    r"code_revision|tokenizer_revision": "revision is that of all files",
    r"content_format": "the parts of a message are joined, as 'string' does",
    r"auto_tool_choice": "tool_choice 'none' in a request keeps tools from being called",
    r"^logprobs_mode": "SamplingParams(logprobs_mode='processed') asks for it",
    r"structured_outputs_config": "a backend is all that may be chosen, and there is one",
    r"sleep|wake|pause|resume_generation|checkpoint_": "make another engine",
    r"enqueue|wait_for|^add_request": "generate() takes a list, LLMEngine has add_request() and step()",
    r"health|errored|dead_error|is_running|is_stopped|get_status": "is_closed tells whether it takes requests",
    r"collective_rpc|apply_model|weight": "make another engine, of a folder with other weights",
    r"attention_config": "attention_backend is all that may be chosen",
    r"max_num_queued_tokens": "max_num_queued_reqs bounds the queue",
}
COMMANDS = {
    "complete": "`folovllm generate PROMPT` completes without a server",
    "run-batch": "LLM.generate() takes a list of prompts",
    "collect-env": "`folovllm info` shows versions and devices",
    "launch": "`folovllm serve`",
    "preload": "the first start downloads a model",
    "download-kernels": "kernels are compiled at the first start",
    "snapshot": "there are no snapshots of a process",
    "serve": "`folovllm bench serve-load` measures a server",
    "startup": "`folovllm bench latency` measures a model that has been loaded",
    "sweep": "`folovllm bench compare` holds results against each other",
    "mm-processor": _NO_IMAGES,
}
"""vLLM's commands, and those of its bench, that are none here: what to do instead."""
_MODULES = (
    "inputs", "engine.arg_utils", "engine.async_llm_engine", "v1.engine.async_llm", "v1.engine.llm_engine",
    "v1.sample.logits_processor", "lora.request", "pooling_params",
)  # fmt: skip


@cache
def names() -> dict[str, Any]:
    """The list's sections: "engine" and "server" {argument: {"kind", "default", "spellings"}}, and others."""
    listed: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return listed | {"engine": listed["engine"] | _EARLIER}


def arguments() -> dict[str, dict[str, Any]]:
    """Of `vllm serve`, by their names."""
    return {**names()["engine"], **names()["server"]}


def is_option(word: str) -> bool:
    """Whether a command of vLLM's has such an option: --kv-transfer-config, --no-enable-lora, -pp."""
    known = {name.replace("_", "-") for name in arguments()} | {*names()["options of other commands"]}
    if word.startswith("--"):
        return bool({word[2:], word[2:].removeprefix("no-")} & known)
    return long_option(word) != word


def long_option(word: str) -> str:
    """--pipeline-parallel-size for -pp; another word stays."""
    spelled = (name for name, how in arguments().items() if word in how.get("spellings", ()))
    return next(("--" + name.replace("_", "-") for name in spelled), word)


def instead(name: str) -> str:
    return next((text for pattern, text in _INSTEAD.items() if re.search(pattern, name)), "leave it out")


def check_argument(name: str, value: object) -> str:
    """Why an argument that FoloVLLM does not have changes nothing with this value: "" where it says what is so anyway.

    Raises:
        ValueError: it would change something.
    """
    if name in WITHOUT_EFFECT and value is not None:
        return WITHOUT_EFFECT[name]
    so = _SO_ANYWAY.get(name, (arguments()[name].get("default"),))
    if value is not None and not any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in so
    ):
        must = " or ".join(repr(each) for each in so if each is not None) or "left out"
        raise wrong(name, f"be {must}", value, f"{HAS_NOT}: {instead(name)}")
    return ""


def unknown_keyword(section: str, name: str) -> str:
    """What to say of a keyword that is none here; "" where vLLM does not know it either."""
    known = names()[section]
    return f"unknown keyword {name!r}: {HAS_NOT}; {instead(name)}" if name in known or name in _EARLIER else ""


def check_keywords(owner: str, method: str, given: dict[str, Any]) -> None:
    """Raises ValueError: a keyword that vLLM's method has and this one has not. TypeError: one that neither has."""
    for name, value in given.items():
        if name not in names()["methods"][owner].get(method, ()):
            raise TypeError(f"{owner}.{method}() got an unknown keyword {name!r}")
        if value is not None and value is not False:
            raise wrong(name, "be None", value, f"{HAS_NOT}: {instead(name)}")


class KnowsVLLM:
    """Names what vLLM's class of this name has beside."""

    def __getattr__(self, name: str) -> Any:
        if name == "vllm_config":
            return getattr(self, "config", None) or self.engine.config
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        for owner in type(self).__mro__:
            if name in names()["methods"].get(owner.__name__, ()) and name[:1] != "_":
                text += f": {HAS_NOT}; {instead(name)}"
        raise AttributeError(text)


class Module(ModuleType):
    """A module of vLLM's by its place: it has the public names of this package."""

    def __getattr__(self, name: str) -> Any:
        import folovllm

        if name.startswith("__") or hasattr(folovllm, name):
            return getattr(folovllm, name)
        raise ImportError(f"{self.__name__}.{name}: {HAS_NOT}; {instead(self.__name__ + name)}")


MODULES = {path: Module(path) for path in (f"folovllm.{each}" for each in _MODULES)}
