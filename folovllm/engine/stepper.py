"""The step loop's engine room: schedule, launch, collect; one step at a time, or with the next one launched meanwhile.

vLLM: v1/engine/core.py (step, step_with_batch_queue)
"""

from __future__ import annotations

from folovllm.core.run_ahead import assume, can_run_ahead
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Sequence
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.model_runner_output import ModelRunnerOutput
from folovllm.worker.pending_step import PendingStep


class StepFailedError(Exception):
    """A step raised, and it was not one request's fault."""

    def __init__(self, error: Exception, seqs: list[Sequence]) -> None:
        super().__init__(f"a step of {len(seqs)} sequences failed: {error!r}")
        self.error, self.seqs = error, seqs  # what it raised; those that took part and are lost


class Stepper:
    """Args:
    run_ahead: launch a step before the tokens of the one before it are known, where that is possible.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, *, run_ahead: bool) -> None:
        self.scheduler, self.runner, self.run_ahead = scheduler, runner, run_ahead
        self._launched: PendingStep | None = None
        self._taking_part: list[Sequence] = []

    def step(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        """The results of the next step, which the scheduler has not taken in yet.

        Raises:
            StepFailedError: the scheduler has started over, without anything in flight.
            BaseException: an interrupt, or what scheduling itself raised; likewise.
        """
        self._taking_part = [] if self._launched is None else list(self._launched.scheduled.scheduled_seqs)
        try:
            return self._step_ahead() if self.run_ahead else self._step()
        except BaseException as error:  # an interrupt, too: blocks may have been promised and not been moved
            self._launched = None
            self.scheduler.start_over()
            if not self._taking_part or not isinstance(error, Exception):
                raise
            raise StepFailedError(error, [seq for seq in self._taking_part if not seq.is_finished()]) from error

    def _step(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        scheduled = self._schedule()
        return scheduled, self.runner.execute(scheduled)

    def _step_ahead(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        step, self._launched = self._launched, None
        if step is None:
            step = self.runner.launch(self._schedule())
        if can_run_ahead(self.scheduler, step.scheduled):
            assume(self.scheduler, step.scheduled)
            self._launched = self.runner.launch(self._schedule())
        return step.scheduled, self.runner.collect(step)

    def _schedule(self) -> SchedulerOutput:
        scheduled = self.scheduler.schedule()
        self._taking_part += scheduled.scheduled_seqs
        return scheduled
