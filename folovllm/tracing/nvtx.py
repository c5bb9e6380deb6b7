"""Names for the parts of a step in NVIDIA's profilers: NVTX ranges.

    step ┌──────────────────────────────────────────┐
         │ schedule │ launch │ (waiting) │ update   │ output
         └──────────────────────────────────────────┘

    nsys profile --trace=cuda,nvtx folovllm generate "Hello" --nvtx

vLLM: utils/nvtx_pytorch_hooks.py
"""

from __future__ import annotations

from typing import Any

from folovllm.tracing.observer import PartObserver


def attach_nvtx(engine: Any) -> NvtxRanges:
    """Ranges around the parts of each step of an LLMEngine.

    Raises:
        ValueError: the engine is not on a GPU.
    """
    if engine.device.type != "cuda":
        raise ValueError(f"nvtx must be off on {engine.device}: NVIDIA's profilers see a GPU only; use trace here")
    ranges = NvtxRanges()
    engine.observers.append(ranges)
    return ranges


class NvtxRanges(PartObserver):
    def __init__(self) -> None:
        from torch.cuda import nvtx

        self._nvtx, self._num_open = nvtx, 0

    def part_began(self, part: str) -> None:
        depth = 0 if part in ("step", "output", "") else 1
        while self._num_open > depth:
            self._nvtx.range_pop()
            self._num_open -= 1
        if part not in ("wait", ""):
            self._nvtx.range_push(part)
            self._num_open += 1
