"""FoloVLLM: an LLM inference engine to learn from, in the shape of vLLM v1.

Public names load on first use (PEP 562): `import folovllm` itself imports neither torch nor transformers,
so the command line's `--help` and everything that only reads configuration start at once.

vLLM: __init__.py
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from folovllm.utils.threads import set_wait_policy

__version__ = "0.1.0"

set_wait_policy()  # OpenMP reads it when torch is imported, so it has to be said before

# Public name -> the module it lives in.
_EXPORTS = {
    "CacheConfig": "folovllm.config",
    "EngineConfig": "folovllm.config",
    "ModelConfig": "folovllm.config",
    "SchedulerConfig": "folovllm.config",
    "AsyncLLM": "folovllm.entrypoints.clients.async_llm",
    "EngineStats": "folovllm.engine.stats",
    "LLMEngine": "folovllm.engine.llm_engine",
    "LLM": "folovllm.entrypoints.llm",
    "EngineDeadError": "folovllm.errors",
    "FoloVLLMError": "folovllm.errors",
    "IllegalTransition": "folovllm.errors",
    "LogitsNotFiniteError": "folovllm.errors",
    "ModelLoadError": "folovllm.errors",
    "NoTokenLeftError": "folovllm.errors",
    "PromptTooLongError": "folovllm.errors",
    "ModelLoader": "folovllm.model_loader",
    "get_model_and_tokenizer": "folovllm.model_loader",
    "CompletionOutput": "folovllm.outputs",
    "Logprob": "folovllm.outputs",
    "RequestMetrics": "folovllm.outputs",
    "RequestOutput": "folovllm.outputs",
    "Request": "folovllm.request",
    "RequestStatus": "folovllm.request",
    "Sequence": "folovllm.request",
    "SequenceData": "folovllm.request",
    "SequenceStatus": "folovllm.request",
    "LogitsProcessor": "folovllm.sample.logits_processors",
    "register_logits_processor": "folovllm.sample.logits_processors",
    "BeamSearchParams": "folovllm.entrypoints.clients.beam_search",
    "RequestOutputKind": "folovllm.sampling_params",
    "SamplingParams": "folovllm.sampling_params",
    "StructuredOutputsParams": "folovllm.structured_outputs",
    "TextPrompt": "folovllm.engine.input_processor",
    "TokensPrompt": "folovllm.engine.input_processor",
    "SamplingType": "folovllm.sampling_params",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'folovllm' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value  # the next look-up does not come through here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
