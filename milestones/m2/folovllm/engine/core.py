"""The engine below the text: a scheduler, a runner, and the step that joins them.

    schedule()  which sequences compute how many tokens  ─▶  execute_model()  a forward, a draw for each
        ▲                                                                              │
        └──────────── update_from_output()  tokens are appended  ◀─────────────────────┘

vLLM: v1/engine/core.py (EngineCore.step)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from folovllm.config import EngineConfig
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.model_runner_output import ModelRunnerOutput

Gained = list[tuple[Sequence, SequenceStatus | None]]
"""Sequences with one more token each, and the status that it brings about, if any."""


@dataclass(slots=True)
class SequenceChanges:
    """What becomes of sequences by the tokens of a step, as the output processor finds; EngineCore carries it out."""

    ended: list[tuple[Request, Sequence, SequenceStatus]] = field(default_factory=list)


class StepFailedError(Exception):
    """A step raised, and no single request was the cause."""

    def __init__(self, error: Exception, seqs: list[Sequence]) -> None:
        super().__init__(f"a step of {len(seqs)} sequences failed: {error!r}")
        self.error, self.seqs = error, seqs  # what it raised; the sequences that took part and are lost


class EngineCore:
    """Made by build_engine_core.

    Args:
        config: with all that was decided filled in: the budgets, the blocks, the longest sequence.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, config: EngineConfig) -> None:
        self.scheduler, self.runner = scheduler, runner
        self.config = config

    def step(self) -> tuple[SchedulerOutput, ModelRunnerOutput, Gained]:
        """What was computed, what came of it, and the sequences that gained a token by it.

        Raises:
            StepFailedError: the sequences that took part are lost, those that wait are not.
        """
        scheduled = self.scheduler.schedule()
        try:
            output = self.runner.execute_model(scheduled)
        except Exception as error:
            lost = [seq for seq in scheduled.scheduled_seqs if not seq.is_finished()]
            raise StepFailedError(error, lost) from error
        return scheduled, output, self.scheduler.update_from_output(scheduled, output.token_ids)

    def apply(self, changes: SequenceChanges) -> None:
        for request, seq, status in changes.ended:
            self.scheduler.finish(request, seq, status)
