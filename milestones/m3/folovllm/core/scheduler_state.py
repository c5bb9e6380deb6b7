"""What the scheduler knows between two steps: which requests wait, run or are swapped; how a step's tokens come in.

    waiting   a queue, in the order of the policy          running, swapped   lists in that same order, the oldest first

    schedule() ─▶ SchedulerOutput ─▶ the worker ─▶ update_from_output(): its tokens ─▶ finish(): what has ended

A request with several sequences can stand in more than one of these. What each step computes is decided in
core/scheduler.py.

vLLM: v1/core/sched/scheduler.py (update_from_output, finish_requests)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from itertools import count

from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.request_queue import Key, RequestQueue
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.core.stop import check_stop
from folovllm.request import Request, Sequence, SequenceStatus

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED


class SchedulerState:
    """Args:
    by_priority: the queue's policy is "priority", else "fcfs".
    """

    def __init__(
        self, kv: KVCacheManager, eos_token_ids: frozenset[int], max_model_len: int, *, by_priority: bool
    ) -> None:
        self.kv, self.eos_token_ids, self.max_model_len = kv, eos_token_ids, max_model_len
        self.by_priority = by_priority
        self.waiting = RequestQueue()
        self.running: list[Request] = []  # these two by key, the oldest first
        self.swapped: list[Request] = []
        self._keys: dict[Request, Key] = {}
        self._arrivals = count()
        self._finished_seq_ids: list[str] = []
        self._stale_seq_ids: list[str] = []
        self._changed_seqs: list[Sequence] = []  # whose block tables changed after their step

    def add_request(self, request: Request) -> None:
        self._keys[request] = (request.priority if self.by_priority else 0, next(self._arrivals))
        self.waiting.add(request, self._keys[request])

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Iterable[int | None]
    ) -> list[tuple[Sequence, SequenceStatus | None]]:
        """Take in a step's tokens, one per row of `output`; None where it brought none.

        Returns the sequences that gained a token, each with the status that this token brings about, if any. They are
        ended by finish(), later, since a stop string may have a say. A sequence that was aborted meanwhile is passed
        over.
        """
        self.advance(output)
        gained: list[tuple[Sequence, SequenceStatus | None]] = []
        for seq, token_id in zip(output.rows, token_ids, strict=True):
            if seq.status is RUNNING and token_id is not None:
                seq.data.output_token_ids.append(token_id)
                gained.append((seq, check_stop(seq, self.eos_token_ids, self.max_model_len)))
        return gained

    def advance(self, output: SchedulerOutput) -> None:
        """A step has been computed: its keys and values are in the cache."""
        kv, block_size = self.kv, self.kv.block_size
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            if seq.status is RUNNING:
                num_computed = seq.num_computed_tokens = seq.num_computed_tokens + num_tokens
                if num_computed % block_size < num_tokens:  # a block has become full
                    self._changed_seqs += kv.cache_blocks(seq)

    def fork(self, request: Request, parent: Sequence, child: Sequence) -> None:
        """A child that shares all that its parent, which runs, has computed."""
        self.kv.fork(parent, child, parent.num_computed_tokens)
        request.add_seq(child)

    def rewrite(self, seq: Sequence) -> None:
        """The tokens of a running sequence were changed: the worker must read them anew."""
        self._stale_seq_ids.append(seq.seq_id)

    def finish(self, request: Request, seq: Sequence, status: SequenceStatus) -> None:
        """End one sequence, wherever it is, and free what it holds. One that has ended already stays as it is."""
        if seq.is_finished():
            return
        before = seq.status
        self._end(seq, status)
        if before is RUNNING:
            self._leave_running(request)
        elif before is SWAPPED:
            if not request.has(SWAPPED):
                self.swapped.remove(request)
        elif not request.has(WAITING):
            self.waiting.remove(request)
        if request.is_finished():
            self._keys.pop(request, None)

    def _end(self, seq: Sequence, status: SequenceStatus) -> None:
        """A sequence's own side of its end; where its request stands is the caller's business."""
        before = seq.status
        seq.transition(status)
        if before is RUNNING:
            self.kv.free(seq)
        elif before is SWAPPED:
            self.kv.free_swapped(seq)
        self.kv.forget(seq)
        self._finished_seq_ids.append(seq.seq_id)

    def start_over(self) -> None:
        """A step was cut short, and what the cache holds is not known: all requests wait again, in their old places."""
        self.kv.clear()
        self._changed_seqs = []
        self.running, self.swapped, self.waiting = [], [], RequestQueue()
        for request, key in self._keys.items():
            for seq in request.get_seqs():
                if seq.status is SWAPPED:
                    seq.transition(RUNNING)
                if seq.status is RUNNING:
                    seq.transition(WAITING)
                seq.block_ids, seq.num_computed_tokens = [], 0
                self._stale_seq_ids.append(seq.seq_id)
            if request.has(WAITING):
                self.waiting.add(request, key)

    def has_unfinished_requests(self) -> bool:
        return bool(self._keys)

    @property
    def num_running_seqs(self) -> int:
        return sum(request.get_num_seqs(RUNNING) for request in self.running)

    @property
    def num_used_tokens(self) -> int:
        """Tokens of running sequences whose keys and values lie in the cache; shared ones count for each."""
        return sum(seq.num_computed_tokens for request in self.running for seq in request.get_seqs(RUNNING))

    def abort(self, request: Request) -> None:
        """End all of its sequences, which may be thousands, in one pass."""
        for seq in request.get_seqs():
            if not seq.is_finished():
                self._end(seq, SequenceStatus.FINISHED_ABORTED)
        for line in (self.running, self.swapped):
            if request in line:
                line.remove(request)
        self.waiting.remove(request)
        self._keys.pop(request, None)

    def _key(self, request: Request) -> Key:
        return self._keys[request]

    def _enter_running(self, request: Request) -> None:
        if request not in self.running:
            insort(self.running, request, key=self._key)

    def _enter_waiting(self, request: Request) -> None:
        if request not in self.waiting:
            self.waiting.add(request, self._keys[request])

    def _leave_running(self, request: Request) -> None:
        if not request.has(RUNNING):
            self.running.remove(request)

    def check_invariants(self) -> None:
        """What must hold between two steps. Raises RuntimeError: a block that is lost or owned twice, a request in the
        wrong line."""
        running = [seq for request in self.running for seq in request.get_seqs(RUNNING)]
        swapped = [seq for request in self.swapped for seq in request.get_seqs(SWAPPED)]
        self.kv.check_invariants(running, swapped)
        for request in self._keys:
            where = (request in self.running, request in self.waiting, request in self.swapped)
            if where != self._places(request):
                raise RuntimeError(
                    f"request {request.request_id} is in the wrong place (running, waiting, swapped): {where}"
                )

    def _places(self, request: Request) -> tuple[bool, bool, bool]:
        """Whether it has to stand among the running, the waiting, the swapped."""
        return request.has(RUNNING), request.has(WAITING), request.has(SWAPPED)
