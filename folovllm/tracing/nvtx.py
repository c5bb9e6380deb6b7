"""Names for the parts of a step in NVIDIA's profilers: NVTX ranges around the calls of which a step consists.

    step ┌──────────────────────────────────────────┐
         │ schedule │ launch │ (waiting) │ update   │ output
         └──────────────────────────────────────────┘

    nsys profile --trace=cuda,nvtx folovllm generate "Hello" --nvtx

vLLM: v1/utils.py (record_function_or_nullcontext)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attach_nvtx(engine: Any) -> Callable[[], None]:
    """Ranges in each step of an LLMEngine, until what this returns is called.

    Raises:
        ValueError: the engine is not on a GPU.
    """
    if engine.device.type != "cuda":
        raise ValueError(f"nvtx must be off on {engine.device}: NVIDIA's profilers see a GPU only; use trace here")
    from torch.cuda import nvtx

    core = engine.core
    calls = [
        (core, "step", "step"), (core.scheduler, "schedule", "schedule"), (core.runner, "execute_model", "launch"),
        (core.scheduler, "update_from_output", "update"), (engine.output_processor, "process_outputs", "output"),
    ]  # fmt: skip
    for owner, name, part in calls:
        setattr(owner, name, nvtx.range(part)(getattr(owner, name)))

    def stop() -> None:
        for owner, name, _ in calls:
            delattr(owner, name)

    return stop
