"""The engine below the text: a scheduler, a runner, and the step that joins them.

    one after the other   schedule N ─▶ execute N ─▶ get_output N ─▶ update N ─▶ schedule N+1 …
    running ahead         schedule N ─▶ execute N ─▶ schedule N+1 ─▶ execute N+1 ─▶ get_output N ─▶ update N ─▶ …

vLLM: v1/engine/core.py (EngineCore.step, step_with_batch_queue)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from folovllm.config import EngineConfig
from folovllm.core.run_ahead import assume, can_run_ahead
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.core.step_record import Listener, StepRecord
from folovllm.engine.beams import BeamGroup
from folovllm.engine.masks_ahead import MasksAhead
from folovllm.engine.messages import EngineCoreOutput, EngineCoreOutputs
from folovllm.engine.one_thread import threads_for_steps
from folovllm.engine.stats import EngineStats, TokenCounter
from folovllm.errors import EngineDeadError
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.utils.devices import find_device_fault
from folovllm.worker.async_output import AsyncModelRunnerOutput
from folovllm.worker.memory import CacheSize
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.model_runner_output import LogprobsRow, ModelRunnerOutput

RUNNING = SequenceStatus.RUNNING
Gained = list[tuple[Sequence, SequenceStatus | None]]
"""Sequences with one more token, once for each token, and the status that it brings about, if any."""


@dataclass(slots=True)
class SequenceChanges:
    """What becomes of beams by a step, as BeamGroup finds; EngineCore carries it out."""

    ended: list[tuple[Request, Sequence, SequenceStatus]] = field(default_factory=list)
    forked: list[tuple[Request, Sequence, Sequence]] = field(default_factory=list)  # (request, parent, child) of beams
    rewritten: list[Sequence] = field(default_factory=list)  # beams whose tokens the worker must read anew


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
        self.config, self.cache_size, self.run_ahead = config, cache_size, run_ahead
        self._launched: tuple[SchedulerOutput, AsyncModelRunnerOutput] | None = None
        self.clock: Callable[[], float] = time.time
        self.listeners: list[Listener] = []
        self._records: list[StepRecord | None] = []  # of the steps in flight
        self._over: StepRecord | None = None  # of the step whose tokens have been taken in
        self._taking_part: list[Sequence] = []
        self._fault: Exception | None = None  # of the device, from which it does not recover
        self.requests: dict[str, Request] = {}  # unfinished, in order of arrival
        self.beams: dict[str, BeamGroup] = {}  # by request id
        self._new: set[str] = set()  # requests that no step has taken in
        self._masks, self.tokens = MasksAhead(), TokenCounter()
        self._threads = threads_for_steps(config.model_config.model, config.parallel_config.tensor_parallel_size)
        self._is_stepping = False

    def listen(self, listener: Listener) -> Callable[[], None]:
        """It gets the record of each step at its end, and of one that failed once the scheduler has started over, until
        what this returns is called."""
        if not self.listeners:
            self.scheduler.record, self.scheduler.kv.pool.events = StepRecord(), []
        self.listeners = [*self.listeners, listener]  # another list: a step may be reporting in its thread

        def stop() -> None:
            self.listeners = [each for each in self.listeners if each is not listener]
            if not self.listeners:
                self.scheduler.record = self.scheduler.kv.pool.events = None

        return stop

    def add_request(self, request: Request) -> None:
        scheduler, self.requests[request.request_id] = self.scheduler, request
        self._new.add(request.request_id)
        if request.sampling_params.use_beam_search:
            self.beams[request.request_id] = BeamGroup(request, scheduler.eos_token_ids, scheduler.max_model_len)
        scheduler.add_request(request)

    def abort_request(self, request_id: str, index: int | None = None) -> None:
        """Drop a request, wherever it is; or end the sequence of this index, in whose text a stop string was found. One
        that is not there is no error."""
        if (request := self.requests.get(request_id)) is None:
            return
        if index is None:
            self.scheduler.abort(request)
        elif not (seq := request.sequences[f"{request_id}-{index}"]).is_finished():
            self._finish(request, seq, SequenceStatus.FINISHED_STOPPED)
        self._forget_finished(request)

    def stats(self) -> EngineStats:
        return EngineStats.of(self.scheduler, self.tokens)

    def step(self) -> EngineCoreOutputs:
        """One step, if there is anything to do. A request that fails by itself, or took part in a step that failed, is
        gone; the others go on.

        Raises:
            EngineDeadError: the device has faulted, or a rank has gone, in this step or an earlier one.
            BaseException: an interrupt, or what scheduling itself raised: nothing is in flight.
        """
        if self._is_stepping:
            raise RuntimeError(
                "the engine is in the middle of a step, and a logits processor or the like asks it for the next one: "
                "use another engine in there"
            )
        made, self._is_stepping = EngineCoreOutputs(), True
        try:
            if self.requests and self._masks.let_go(self.scheduler):
                with self._threads():
                    self._step(made)
        finally:
            self._is_stepping = False
        return made

    def _step(self, made: EngineCoreOutputs) -> None:
        began, began_at = time.perf_counter(), time.time()
        try:
            scheduled, output, gained = self._compute()
        except StepFailedError as failed:  # the requests that took part are lost, those that wait are not
            for seq in failed.seqs:
                self._fail(seq, failed.error, made)
            return
        if self._new:
            self._note_new(scheduled, began_at, made)
        for seq in scheduled.rows if output.failures else ():
            if seq.seq_id in output.failures:
                self._fail(seq, output.failures[seq.seq_id], made)
        for seq in scheduled.rows if output.prompt_logprobs else ():
            if seq.seq_id in output.prompt_logprobs and not seq.is_finished():
                made.prompt_logprobs[self.requests[seq.request_id].key] = output.prompt_logprobs[seq.seq_id]
        num_tokens = self._take_in(scheduled.rows, output, gained, made)
        self._report(self._over)
        self.tokens.record(began, scheduled.num_prompt_tokens, num_tokens)

    def _note_new(self, scheduled: SchedulerOutput, began_at: float, made: EngineCoreOutputs) -> None:
        for seq in scheduled.grown_seqs:  # whoever takes part for the first time has new blocks
            if seq.request_id in self._new:
                self._new.remove(seq.request_id)
                request = self.requests[seq.request_id]
                made.prefill_stats[request.key] = request.num_cached_tokens or 0, began_at

    def _fail(self, seq: Sequence, error: Exception, made: EngineCoreOutputs) -> None:
        """Its request ends in `error`."""
        if (request := self.requests.get(seq.request_id)) is not None:
            self.abort_request(seq.request_id)
            made.failures[request.key] = error

    def _take_in(self, rows: list[Sequence], output: ModelRunnerOutput, gained: Gained, made: EngineCoreOutputs) -> int:
        """The new tokens of each sequence, several where draft tokens were right; returns how many there are."""
        logprobs = {seq: row for seq, row in zip(rows, output.logprobs, strict=True) if row is not None}
        last = dict(gained)  # of each sequence: what its last token brings about
        counts = Counter(seq for seq, _ in gained) if len(last) < len(gained) else {}
        changed: dict[Request, None] = {}
        num_tokens, pooled = 0, output.pooled
        for seq, ended in last.items():
            if seq.status is not RUNNING:  # its request has failed in this step
                continue
            request, count = self.requests[seq.request_id], counts.get(seq, 1)
            params, num_tokens = request.sampling_params, num_tokens + count
            if params.extra_args:
                changed[request] = None
            if ended is None and count == params.best_of == 1 and seq not in logprobs:
                made.new_tokens[request.key] = seq.data.output_token_ids[-1]
                continue
            token_ids, index = seq.data.output_token_ids[-count:], 0 if params.best_of == 1 else seq.index
            new_logprobs = [logprobs[seq], *output.later_logprobs.get(seq.seq_id, ())] if seq in logprobs else None
            reason = None if ended is None else SequenceStatus.finish_reason(ended)
            answer = pooled[seq.seq_id] if pooled else None
            came = new_logprobs, reason, seq.stop_reason, None, answer
            made.outputs.append(EngineCoreOutput(request.key, index, token_ids, *came))
            if ended is not None:
                self._finish(request, seq, ended)
                self._forget_finished(request)
        self._masks.begin(changed)
        if pooled:
            return 0
        return num_tokens + (self._advance_beams(logprobs, made) if self.beams else 0)

    def _advance_beams(self, logprobs: dict[Sequence, LogprobsRow], made: EngineCoreOutputs) -> int:
        """One step of every search whose beams took part; returns how many beams did."""
        rows = {seq: row for seq, row in logprobs.items() if seq.status is RUNNING and seq.request_id in self.beams}
        for request_id in dict.fromkeys(seq.request_id for seq in rows):
            request, group, changes = self.requests[request_id], self.beams[request_id], SequenceChanges()
            is_over = group.advance(rows, changes)
            self.apply(changes)
            if not is_over:
                made.outputs.append(EngineCoreOutput(request.key, 0, []))
                continue
            width = request.sampling_params.logprobs
            for index, (seq, found) in enumerate(group.winners()):
                cut = None if width is None else [row.cut(width) for row in found]
                why = SequenceStatus.finish_reason(seq.status), seq.stop_reason
                won = EngineCoreOutput(request.key, index, seq.data.output_token_ids, cut, *why, seq.cumulative_logprob)
                made.outputs.append(won)
            self._forget_finished(request)
        return len(rows)

    def _finish(self, request: Request, seq: Sequence, status: SequenceStatus) -> None:
        was_preempted = seq.status is not SequenceStatus.RUNNING  # in a step after that of its stop string
        self.scheduler.finish(request, seq, SequenceStatus.FINISHED_ABORTED if was_preempted else status)
        if (record := self._over or self.scheduler.record) is not None:  # a stop string is found behind the step
            record.ended.append((seq, status))

    def _forget_finished(self, request: Request) -> None:
        if request.is_finished():
            del self.requests[request.request_id]
            self.beams.pop(request.request_id, None)
            self._new.discard(request.request_id)

    def _compute(self) -> tuple[SchedulerOutput, ModelRunnerOutput, Gained]:
        """What was computed, what came of it, and the sequences that gained a token by it. Whatever it raises, the
        scheduler has started over, with nothing in flight."""
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
            self._launched, unscheduled = None, self.scheduler.record
            self.scheduler.start_over()
            while self._records:
                if (record := self._records.pop(0)) is not None and record is unscheduled:
                    record.arrived = []  # they are the next one's
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
        came_of_it = output.token_ids, output.failures, output.drafts, output.pooled
        gained = self.scheduler.update_from_output(scheduled, *came_of_it)
        if (record := self._records.pop(0)) is not None:
            record.times += (came, self.clock())
            record.token_ids, record.drafts, self._over = output.token_ids, output.drafts, record
        return scheduled, output, gained

    def apply(self, changes: SequenceChanges) -> None:
        for request, parent, child in changes.forked:  # before any parent ends
            self.scheduler.fork(request, parent, child)
        for ended in changes.ended:
            self._finish(*ended)
        for seq in changes.rewritten:
            self.scheduler.rewrite(seq)

    def _report(self, record: StepRecord | None) -> None:
        self._over = None
        if record is not None and self.listeners:
            record.times.append(self.clock())
            for listener in self.listeners:
                listener(record)

    def _launch(self) -> tuple[SchedulerOutput, AsyncModelRunnerOutput]:
        self._records.append(record := self.scheduler.record)
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
