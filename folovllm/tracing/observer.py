"""The parts of a step, for an observer that times them.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from folovllm.core.observer import EngineObserver
from folovllm.core.scheduler_output import Drafts, SchedulerOutput


class PartObserver(EngineObserver):
    """part_began() is called as a step and each of its parts begins: step, schedule, launch, wait, update, output; "":
    it is over."""

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
