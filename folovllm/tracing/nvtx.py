"""Names for the parts of a step in NVIDIA's profilers: NVTX ranges around what the engine calls.

    step ┌──────────────────────────────────────────┐
         │ schedule │ launch │ (waiting) │ update   │ output
         └──────────────────────────────────────────┘

    nsys profile --trace=cuda,nvtx folovllm generate "Hello" --nvtx

vLLM: utils/nvtx_pytorch_hooks.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from folovllm.tracing.wraps import Wraps

# A range's name -> whose method it is around.
RANGES: dict[str, tuple[str, str]] = {
    "step": ("core", "step"),
    "schedule": ("scheduler", "schedule"),
    "launch": ("runner", "execute_model"),
    "update": ("scheduler", "update_from_output"),
    "output": ("output_processor", "process_outputs"),
}


def attach_nvtx(engine: Any) -> Wraps:
    """Ranges around the parts of each step of an LLMEngine, until undo() of what this returns.

    Raises:
        ValueError: the engine is not on a GPU.
    """
    if engine.device.type != "cuda":
        raise ValueError(f"nvtx must be off on {engine.device}: NVIDIA's profilers see a GPU only; use trace here")
    from torch.cuda import nvtx

    wraps = Wraps()
    for name, (owner, method) in RANGES.items():
        wraps.around(getattr(engine, owner), method, _ranged(nvtx, name))
    return wraps


def _ranged(nvtx: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        def ranged(*args: Any, **kwargs: Any) -> Any:
            nvtx.range_push(name)
            try:
                return method(*args, **kwargs)
            finally:
                nvtx.range_pop()

        return ranged

    return make
