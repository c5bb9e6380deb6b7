"""Continuous batching: which sequences compute how many tokens in a step.

A batch is not formed once and run to its end. Before each step the scheduler fills it anew: sequences that have ended
are gone, waiting ones take their places, and the step mixes whole prompts (prefill) with single tokens (decode).

    step        1    2    3    4    5    6
    slot 0      A••• a    a    C••  c    c        A ends after step 3, C takes its slot in step 4
    slot 1      B••  b    b    b    b    D•••     B ends after step 5

Two budgets bound a step: tokens (`max_num_batched_tokens`) and sequences (the slots). A slot is a stretch of the KV
cache of max_model_len tokens, one per running sequence, whatever its real length.

Iteration-level scheduling: Orca (Yu et al., OSDI 2022). vLLM: v1/core/sched/scheduler.py
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count

from folovllm.config import SchedulerConfig
from folovllm.core.request_queue import Key, RequestQueue
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus, check_stop


class Scheduler:
    """Owns the waiting queue, the running requests and the slots.

    Args:
        config: with max_num_batched_tokens and max_model_len filled in; a prompt of max_model_len must fit one step.
        num_slots: how many sequences the KV cache has room for.
    """

    def __init__(self, config: SchedulerConfig, num_slots: int, eos_token_ids: frozenset[int]) -> None:
        self.max_num_batched_tokens, self.max_model_len = config.max_num_batched_tokens, config.max_model_len
        # Every running sequence must be able to decode in every step.
        self.max_num_seqs = min(config.max_num_seqs, num_slots, config.max_num_batched_tokens)
        self.eos_token_ids = eos_token_ids
        self.by_priority = config.policy == "priority"
        self.num_slots = num_slots
        self.waiting = RequestQueue()
        self.running: list[Request] = []  # in the order of admission
        self.num_running_seqs = 0
        self.free_slots = list(range(num_slots))  # a heap: low slots first, so that the cache fills from one end
        self._arrivals = count()
        self.finished_seq_ids: list[str] = []

    def add_request(self, request: Request) -> None:
        self.waiting.add(request, self._key(request))

    def _key(self, request: Request) -> Key:
        return (request.priority if self.by_priority else 0, next(self._arrivals))

    def schedule(self) -> SchedulerOutput:
        """The next step. Every running sequence decodes; then prompts join, whole, while both budgets last."""
        output = SchedulerOutput(finished_seq_ids=self.finished_seq_ids)
        self.finished_seq_ids = []
        for request in self.running:
            for seq in request.get_seqs():
                if seq.status is SequenceStatus.RUNNING:
                    # One token; the prompt again, if an interrupt cut short the step that was to compute it.
                    output.add(seq, seq.get_len() - seq.num_computed_tokens)
        while self.waiting and self._admit(self.waiting.peek(), output):
            pass
        return output

    def _admit(self, request: Request, output: SchedulerOutput) -> bool:
        """Start the request's next sequence. False when a budget is spent: then those behind it wait as well, or a
        long prompt could be overtaken for ever."""
        num_tokens = len(request.prompt_token_ids)
        if self.num_running_seqs >= self.max_num_seqs:
            return False
        if output.total_num_scheduled_tokens + num_tokens > self.max_num_batched_tokens:
            return False
        seq = request.get_seqs(SequenceStatus.WAITING)[0]
        seq.block_ids = [heapq.heappop(self.free_slots)]
        seq.transition(SequenceStatus.RUNNING)
        output.add(seq, num_tokens)
        self.num_running_seqs += 1
        if request not in self.running:
            self.running.append(request)
        if not request.has(SequenceStatus.WAITING):
            self.waiting.pop()
        return True

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Iterable[int | None]
    ) -> list[tuple[Sequence, SequenceStatus | None]]:
        """Take in a step's tokens, one per scheduled sequence; None where it brought none.

        Returns the sequences that gained a token, each with the status that this token brings about, if any: ending
        it is left to finish(), since a stop string may have a say. One that was aborted meanwhile is passed over.
        """
        gained: list[tuple[Sequence, SequenceStatus | None]] = []
        for seq, num_tokens, token_id in zip(
            output.scheduled_seqs, output.num_scheduled_tokens, token_ids, strict=True
        ):
            if seq.status is not SequenceStatus.RUNNING:
                continue
            seq.num_computed_tokens += num_tokens
            if token_id is not None:
                seq.data.output_token_ids.append(token_id)
                gained.append((seq, check_stop(seq, self.eos_token_ids, self.max_model_len)))
        return gained

    def finish(self, request: Request, seq: Sequence, status: SequenceStatus) -> None:
        """End one sequence, wherever it is, and free what it holds. One that has ended already stays as it is."""
        if seq.is_finished():
            return
        was_running = seq.status is SequenceStatus.RUNNING
        self._end(seq, status)
        if was_running and not request.has(SequenceStatus.RUNNING):
            self.running.remove(request)
        if request.is_finished():
            self.waiting.remove(request)

    def _end(self, seq: Sequence, status: SequenceStatus) -> None:
        """End a sequence; the lines of its request are the caller's business."""
        if seq.status is SequenceStatus.RUNNING:
            heapq.heappush(self.free_slots, seq.block_ids.pop())
            self.num_running_seqs -= 1
            self.finished_seq_ids.append(seq.seq_id)
        seq.transition(status)

    def abort(self, request: Request) -> None:
        """End all of its sequences, which may be thousands, in one pass."""
        for seq in request.get_seqs():
            if not seq.is_finished():
                self._end(seq, SequenceStatus.FINISHED_ABORTED)
        if request in self.running:
            self.running.remove(request)
        self.waiting.remove(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting) or bool(self.running)

    @property
    def num_used_tokens(self) -> int:
        """Tokens whose keys and values are in the cache; a slot reserves max_model_len for each sequence."""
        return sum(
            seq.num_computed_tokens
            for request in self.running
            for seq in request.get_seqs()
            if seq.status is SequenceStatus.RUNNING
        )

    def check_invariants(self) -> None:
        """Every slot is free or owned by exactly one running sequence. Raises RuntimeError where it is not so."""
        running = [seq for request in self.running for seq in request.get_seqs(SequenceStatus.RUNNING)]
        owned = [slot for seq in running for slot in seq.block_ids]
        if sorted(owned + self.free_slots) != list(range(self.num_slots)):
            raise RuntimeError(f"slots are lost or owned twice: owned {owned}, free {self.free_slots}")
        if any(len(seq.block_ids) != 1 for seq in running) or self.num_running_seqs != len(running):
            raise RuntimeError(f"{self.num_running_seqs} running sequences are counted, {len(running)} own a slot")
        if len(running) > self.max_num_seqs:
            raise RuntimeError(f"{len(running)} sequences run, max_num_seqs is {self.max_num_seqs}")
