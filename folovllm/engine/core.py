"""The engine below the text: a scheduler, a runner, and the step that joins them.

    one after the other   schedule N ─▶ execute N ─▶ get_output N ─▶ update N ─▶ schedule N+1 …
    running ahead         schedule N ─▶ execute N ─▶ schedule N+1 ─▶ execute N+1 ─▶ get_output N ─▶ update N ─▶ …

vLLM: v1/engine/core.py (EngineCore.step, step_with_batch_queue)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from folovllm.config import EngineConfig
from folovllm.core.run_ahead import assume, can_run_ahead
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.core.step_record import Listener, StepRecord
from folovllm.errors import EngineDeadError
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.worker.async_output import AsyncModelRunnerOutput
from folovllm.worker.memory import CacheSize
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.model_runner_output import ModelRunnerOutput

Gained = list[tuple[Sequence, SequenceStatus | None]]
"""Sequences with one more token, once for each token, and the status that it brings about, if any."""


@dataclass(slots=True)
class SequenceChanges:
    """What becomes of sequences by the tokens of a step, as the output processor finds; EngineCore carries it out."""

    ended: list[tuple[Request, Sequence, SequenceStatus]] = field(default_factory=list)
    forked: list[tuple[Request, Sequence, Sequence]] = field(default_factory=list)  # (request, parent, child) of beams
    rewritten: list[Sequence] = field(default_factory=list)  # beams whose tokens the worker must read anew
    cut: list[tuple[Sequence, int]] = field(default_factory=list)
    """Ended by a stop string before the last token of a run: how many tokens stay."""


class StepFailedError(Exception):
    """A step raised, and no single request was the cause."""

    def __init__(self, error: Exception, seqs: list[Sequence]) -> None:
        super().__init__(f"a step of {len(seqs)} sequences failed: {error!r}")
        self.error, self.seqs = error, seqs  # what it raised; the sequences that took part and are lost


class EngineCore:
    """Made by build_engine_core.

    Args:
        config: with all that was decided filled in: the budgets, the blocks, the longest sequence.
        run_ahead: launch a step before the tokens of the one before it are known, where that is possible.
    """

    def __init__(
        self, scheduler: Scheduler, runner: ModelRunner, config: EngineConfig, cache_size: CacheSize, *,
        run_ahead: bool = False,
    ) -> None:  # fmt: skip
        self.scheduler, self.runner = scheduler, runner
        self.config, self.cache_size = config, cache_size
        self.run_ahead = run_ahead
        self._launched: tuple[SchedulerOutput, AsyncModelRunnerOutput] | None = None
        self.clock: Callable[[], float] = time.time
        self.listener: Listener | None = None
        self._records: list[StepRecord | None] = []  # of the steps in flight
        self._over: StepRecord | None = None  # whose tokens have been taken in
        self._taking_part: list[Sequence] = []
        self._fault: Exception | None = None  # of the device, from which it does not recover

    def listen(self, listener: Listener | None) -> None:
        """It gets the record of each step at its end, and of one that failed once the scheduler has started over."""
        if (self.listener is None) != (listener is None):
            self.scheduler.record, self.scheduler.kv.pool.events = (StepRecord(), []) if listener else (None, None)
        self.listener = listener

    def step(self) -> tuple[SchedulerOutput, ModelRunnerOutput, Gained]:
        """What was computed, what came of it, and the sequences that gained a token by it.

        Raises:
            StepFailedError: the scheduler has started over, with nothing in flight.
            EngineDeadError: the device has faulted, or a rank has gone, in this step or an earlier one.
            BaseException: an interrupt, or what scheduling itself raised; likewise.
        """
        if self._fault is not None:
            raise self._dead()
        self._report(self._over)  # where an error kept it from its end
        launched, self._launched = self._launched, None
        self._taking_part = [] if launched is None else list(launched[0].scheduled_seqs)
        try:
            scheduled, pending = launched or self._launch()
            if self.run_ahead and not scheduled.drafts_follow and can_run_ahead(self.scheduler, scheduled):
                assume(self.scheduler, scheduled)
                self._launched = self._launch()
            output = pending.get_output()
            came = self.clock()
        except BaseException as error:  # an interrupt, too: blocks may have been promised and not been moved
            self._launched = None
            self.scheduler.start_over()
            while self._records:
                if (record := self._records.pop(0)) is not None and len(record.times) == 1:
                    record.arrived = []  # it was not scheduled: they are the next one's
                self._report(record)
            if isinstance(error, EngineDeadError):  # a rank has gone
                self._fault = error
                raise
            self._fault = find_device_fault(self.runner.device) if isinstance(error, Exception) else None
            if self._fault is not None:
                raise self._dead() from error
            if not self._taking_part or not isinstance(error, Exception):
                raise
            raise StepFailedError(error, [seq for seq in self._taking_part if not seq.is_finished()]) from error
        tokens = output.token_ids, output.failures, output.drafts
        gained = self.scheduler.update_from_output(scheduled, *tokens)
        if (record := self._records.pop(0)) is not None:
            record.times += (came, self.clock())
            record.token_ids, record.drafts, self._over = output.token_ids, output.drafts, record
        return scheduled, output, gained

    def apply(self, changes: SequenceChanges) -> None:
        for request, parent, child in changes.forked:  # before any parent ends
            self.scheduler.fork(request, parent, child)
        for request, seq, status in changes.ended:
            self.scheduler.finish(request, seq, status)
        for seq in changes.rewritten:
            self.scheduler.rewrite(seq)
        for seq, num_tokens in changes.cut:
            del seq.data.output_token_ids[num_tokens:]
        if self._over is not None:
            self._over.ended = [(seq, seq.status) for _, seq, _ in changes.ended]
            self._report(self._over)

    def _report(self, record: StepRecord | None) -> None:
        self._over = None
        if record is not None and self.listener is not None:
            record.times.append(self.clock())
            self.listener(record)

    def _launch(self) -> tuple[SchedulerOutput, AsyncModelRunnerOutput]:
        record = self.scheduler.record
        self._records.append(record)
        if record is not None:
            record.times.append(self.clock())
        scheduled = self.scheduler.schedule()
        self._taking_part += scheduled.scheduled_seqs
        decided = self.clock()
        pending = self.runner.execute_model(scheduled)
        if record is not None:
            record.times += (decided, self.clock())
        return scheduled, pending

    def _dead(self) -> EngineDeadError:
        if isinstance(self._fault, EngineDeadError):
            return self._fault
        reason = str(self._fault).partition("\n")[0]
        return EngineDeadError(
            f"{self.runner.device} has faulted, and every further call in this process fails the same way: {reason}; "
            "start the process anew, with CUDA_LAUNCH_BLOCKING=1 to learn which call it was"
        )


def find_device_fault(device: torch.device) -> Exception | None:
    """What the device answers to everything from now on; None: it works.

    Some errors of a CUDA device end one call only: memory that was too short may do for the next, smaller step. Others
    end the process: after a kernel has read an address that does not exist, every later call gets the same error. To
    learn which of the two it was, one call is made after a step has failed.
    """
    if device.type != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
    except Exception as fault:
        return fault
    return None
