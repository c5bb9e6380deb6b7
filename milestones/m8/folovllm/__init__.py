"""FoloVLLM: an LLM inference engine to learn from, in the shape of vLLM v1.

Public names load on first use (PEP 562): `import folovllm` itself imports neither torch nor transformers,
so `--help` and everything that only reads configuration start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from folovllm.utils.threads import set_wait_policy

__version__ = "0.1.0"

set_wait_policy()  # OpenMP reads it when torch is imported, so it has to be said before

# Public names by the module that they live in.
_MODULES = {
    "folovllm.config": ("CacheConfig", "EngineConfig", "ModelConfig", "SchedulerConfig"),
    "folovllm.engine.async_llm": ("AsyncLLM",),
    "folovllm.engine.llm_engine": ("LLMEngine",),
    "folovllm.engine.stats": ("EngineStats",),
    "folovllm.entrypoints.beam_search": ("BeamSearchParams",),
    "folovllm.entrypoints.llm": ("LLM",),
    "folovllm.errors": (
        "EngineDeadError",
        "FoloVLLMError",
        "IllegalTransition",
        "LogitsNotFiniteError",
        "ModelLoadError",
        "NoTokenLeftError",
        "PromptTooLongError",
    ),
    "folovllm.model_loader": ("get_model_and_tokenizer", "ModelLoader"),
    "folovllm.outputs": ("CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput"),
    "folovllm.request": ("Request", "RequestStatus", "Sequence", "SequenceData", "SequenceStatus"),
    "folovllm.sample.logits_processors": ("LogitsProcessor", "register_logits_processor"),
    "folovllm.sampling_params": ("RequestOutputKind", "SamplingParams", "SamplingType"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'folovllm' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next look-up does not come through here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
