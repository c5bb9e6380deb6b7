"""Names for the parts of a step in NVIDIA's profilers: NVTX ranges.

    step ┌──────────────────────────────────────────┐
         │ schedule │ launch │ (waiting) │ update   │ output
         └──────────────────────────────────────────┘

    nsys profile --trace=cuda,nvtx folovllm generate "Hello" --nvtx

vLLM: utils/nvtx_pytorch_hooks.py
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from folovllm.core.observer import EngineObserver
from folovllm.core.scheduler_output import Drafts, SchedulerOutput


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


class PartObserver(EngineObserver):
    """For an observer that times the parts of a step: part_began() is called as a step and each of them begins: step,
    schedule, launch, wait, update, output; "": it is over."""

    def part_began(self, part: str) -> None: ...

    def step_began(self) -> None:
        self.part_began("step")

    def scheduling(self) -> None:
        self.part_began("schedule")

    def scheduled(self, output: SchedulerOutput) -> None:
        self.part_began("launch")

    def launched(self) -> None:
        self.part_began("wait")

    def updating(self, output: SchedulerOutput) -> None:
        self.part_began("update")

    def updated(self, output: SchedulerOutput, token_ids: Iterable[int | None], drafts: Drafts) -> None:
        self.part_began("output")

    def step_ended(self, outputs: list[Any]) -> None:
        self.part_began("")

    def started_over(self) -> None:
        self.part_began("")


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
