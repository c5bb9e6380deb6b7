"""Continuous batching over a paged KV cache: which sequences compute how many tokens in a step.

    1  running    every running sequence decodes; where no block is free, the newest request is preempted
    2  swapped    come back, and
       waiting    join, with whole prompts: the oldest first, while there are tokens, sequences and blocks left, and
                  only in steps in which no request had to give way

    schedule() ─▶ SchedulerOutput ─▶ the worker ─▶ update_from_output(): its tokens ─▶ finish(): what has ended

No request starves. An older one keeps its blocks, and a preempted one goes back to its old place in the line, ahead of
all that came later. The oldest can always go on, since a sequence that would not fit alone is never let in.

Iteration-level scheduling: Orca (Yu et al., OSDI 2022).
vLLM: v1/core/sched/scheduler.py; for swapping, V0's core/scheduler.py
"""

from __future__ import annotations

from collections.abc import Iterable

from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.preemption import Preempter, choose_victims
from folovllm.core.request_queue import RequestLines
from folovllm.core.scheduler_output import UNKNOWN, SchedulerOutput
from folovllm.core.sequence_group import rows_claimed, rows_needed, tokens_to_compute
from folovllm.request import Request, Sequence, SequenceStatus, check_stop

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED

# Admission leaves this share of the blocks free, or the newcomer would be preempted as soon as the others grow.
WATERMARK = 0.01


class Scheduler:
    """Decides which sequences compute what; the KV cache manager owns the blocks.

    Args:
        config: with max_num_batched_tokens and max_model_len filled in; a prompt of max_model_len must fit one step.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, eos_token_ids: frozenset[int]) -> None:
        self.kv, self.eos_token_ids = kv, eos_token_ids
        self.max_num_batched_tokens, self.max_model_len = config.max_num_batched_tokens, config.max_model_len
        self.lines = RequestLines(by_priority=config.policy == "priority")
        self.waiting, self.running, self.swapped = self.lines.waiting, self.lines.running, self.lines.swapped
        # Every running sequence must be able to decode in every step.
        self.max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self.preempter = Preempter(kv, config.preemption_mode)
        self.watermark = int(WATERMARK * kv.pool.num_blocks)
        self.finished_seq_ids: list[str] = []
        self._stale_seq_ids: list[str] = []

    def add_request(self, request: Request) -> None:
        self.lines.add(request)

    def schedule(self) -> SchedulerOutput:
        """The next step."""
        output = SchedulerOutput(finished_seq_ids=self.finished_seq_ids, stale_seq_ids=self._stale_seq_ids)
        preempted = False
        for request in self.running:  # grows shorter from its end, as the newest give way
            if not self._decode_in_place(request, output):
                preempted |= self._continue(request, request.get_seqs(RUNNING), output)
        if not preempted and (self.swapped or self.waiting):
            moved = self._let_in(output)
            if output.is_empty and not moved and self.running:
                # Beams that have not all come back hold the blocks that the next request in line needs, which may be
                # more urgent than they are. Without this they would wait for each other for ever.
                newest = self.running[-1]
                self._preempt(newest, newest.get_seqs(RUNNING), output)
        # Cleared only here: a step that was interrupted did not tell the worker, and the next one must.
        self.finished_seq_ids, self._stale_seq_ids = [], []
        return output

    def _let_in(self, output: SchedulerOutput) -> bool:
        """Swapped requests come back and waiting ones join, the oldest first, while there are rows, tokens and blocks
        left. Returns whether any did."""
        rows_left, moved = self.max_num_seqs - sum(map(rows_claimed, self.running)), False
        while self.swapped or self.waiting:
            key = self.lines.key
            if not self.waiting or (self.swapped and key(self.swapped[0]) <= key(self.waiting.peek())):
                taken = self._swap_in(self.swapped[0], rows_left, output)
            else:
                taken = self._admit(self.waiting.peek(), rows_left, output)
            if taken is None:
                break
            rows_left, moved = rows_left - taken, True
        return moved

    def _decode_in_place(self, request: Request, output: SchedulerOutput) -> bool:
        """The usual case: one sequence, one token, and its last block has room. Most requests do nothing else in most
        steps, and it takes a tenth of the time of asking for blocks."""
        seq, *siblings = request.sequences.values()
        if siblings or output.total_num_scheduled_tokens >= self.max_num_batched_tokens:
            return False
        if seq.get_len() - seq.num_computed_tokens != 1 or not self.kv.has_slot(seq):
            return False
        output.add(seq, 1)
        return True

    def _continue(self, request: Request, seqs: list[Sequence], output: SchedulerOutput) -> bool:
        """Let running sequences of a request compute the tokens that are not in the cache yet. True when a request was
        preempted for it."""
        preempted = False
        for seq_tokens in tokens_to_compute(
            request, seqs, self.max_num_batched_tokens - output.total_num_scheduled_tokens
        ):
            while seq_tokens[0][0].status is RUNNING and not self._grant(seq_tokens, output):
                newest, preempted = self.running[-1], True
                self._preempt(newest, choose_victims(newest, request), output)
        return preempted

    def _grant(self, seq_tokens: list[tuple[Sequence, int]], output: SchedulerOutput, keep_free: int = 0) -> bool:
        """Put sequences with their tokens into the step, if there are blocks for them."""
        sizes = [len(seq.block_ids) for seq, _ in seq_tokens]
        copies = self.kv.allocate_slots(seq_tokens, keep_free)
        if copies is None:
            return False
        output.add_copies(copies)
        for (seq, num_tokens), size in zip(seq_tokens, sizes, strict=True):
            if copies or len(seq.block_ids) > size:
                output.grown_seqs.append(seq)
            if num_tokens > 0:
                output.add(seq, num_tokens)
        return True

    def _preempt(self, request: Request, victims: list[Sequence], output: SchedulerOutput) -> None:
        self.preempter.preempt(request, victims, output)
        self.lines.settle(request)
        if request.has(WAITING):
            self.lines.enter_waiting(request)

    def _swap_in(self, request: Request, rows_left: int, output: SchedulerOutput) -> int | None:
        """Bring a swapped request back and let it compute. Its sequences come together, so that what they share stays
        shared; where that is too much, one of them comes alone (beams cannot).

        Returns how many rows it takes, None if rows, tokens or blocks are too few.
        """
        swapped = request.get_seqs(SWAPPED)
        together = [swapped] if request.sampling_params.use_beam_search else [swapped, swapped[:1]]
        for seqs in together:
            rows = rows_needed(request, len(seqs), runs=request in self.running)
            if rows > rows_left:
                continue
            if (moves := self.kv.swap_in(seqs, self._reserve(request))) is not None:
                output.blocks_to_swap_in += moves
                for seq in seqs:
                    seq.transition(RUNNING)
                self.lines.settle(request)
                self._continue(request, seqs, output)
                return rows
        return None

    def _admit(self, request: Request, rows_left: int, output: SchedulerOutput) -> int | None:
        """Start the next waiting sequence of a request.

        Returns how many rows it takes, None when rows, tokens or blocks are used up: then those behind it wait as well,
        or a long prompt could be overtaken for ever.
        """
        rows = rows_needed(request, 1, runs=request in self.running)
        if rows > rows_left:
            return None
        if any(sibling.num_computed_tokens == 0 for sibling in request.get_seqs(RUNNING)):
            return None  # in a step from now there will be something to share
        seq = request.get_seqs(WAITING)[0]
        shared = self.kv.get_computed_blocks(request, seq)
        num_tokens = seq.get_len() - seq.num_computed_tokens
        if request.sampling_params.use_beam_search and seq.get_output_len() > 0:
            num_tokens -= 1  # it catches up with the other beams first
        fits = output.total_num_scheduled_tokens + num_tokens <= self.max_num_batched_tokens
        if not fits or not self._grant([(seq, num_tokens)], output, self._reserve(request)):
            self.kv.free(seq)
            return None
        seq.transition(RUNNING)
        if not shared and seq.get_output_len() == 0:
            # The prompt is prefilled once: siblings that have not begun draw their first token from the same logits.
            children = [child for child in request.get_seqs(WAITING) if child.get_output_len() == 0][: rows_left - rows]
            for child in children:
                self.kv.fork(seq, child, seq.get_prompt_len())
                child.transition(RUNNING)
                output.forks.append((seq, child))
            rows += len(children)
        self.lines.settle(request)
        return rows

    def _reserve(self, request: Request) -> int:
        """Blocks that an admission must leave free. Alone, a request may have them all."""
        return self.watermark if self.running not in ([], [request]) else 0

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Iterable[int | None]
    ) -> list[tuple[Sequence, SequenceStatus | None]]:
        """Take in a step's tokens, one per row of `output`; None where it brought none.

        Returns the sequences that gained a token, each with the status that this token brings about, if any. They are
        ended by finish(), later, since a stop string may have a say. A sequence that was aborted meanwhile is passed
        over.
        """
        if not output.is_assumed:
            self.advance(output)
        gained: list[tuple[Sequence, SequenceStatus | None]] = []
        for seq, token_id in zip(output.rows, token_ids, strict=True):
            if seq.status is RUNNING and token_id is not None:
                token_ids_so_far = seq.data.output_token_ids
                if token_ids_so_far and token_ids_so_far[-1] == UNKNOWN:
                    token_ids_so_far[-1] = token_id
                else:
                    token_ids_so_far.append(token_id)
                gained.append((seq, check_stop(seq, self.eos_token_ids, self.max_model_len)))
        return gained

    def advance(self, output: SchedulerOutput) -> None:
        """A step has been computed, or will have been before anything else is: its keys and values count as there."""
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            if seq.status is RUNNING:
                seq.num_computed_tokens += num_tokens

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
        if not request.has(before):
            self.lines.settle(request)

    def abort(self, request: Request) -> None:
        """End all of its sequences, which may be thousands, in one pass."""
        for seq in request.get_seqs():
            if not seq.is_finished():
                self._end(seq, SequenceStatus.FINISHED_ABORTED)
        self.lines.settle(request)

    def _end(self, seq: Sequence, status: SequenceStatus) -> None:
        """End a sequence; the lines of its request are the caller's business."""
        before = seq.status
        seq.transition(status)
        if before is RUNNING:
            self.kv.free(seq)
        elif before is SWAPPED:
            self.kv.free_swapped(seq)
        self.finished_seq_ids.append(seq.seq_id)

    def start_over(self) -> None:
        """A step was cut short, and what the cache holds is not known: all requests wait again, in their old places."""
        self.kv.clear(seq for request in self.lines for seq in request.get_seqs())
        for request in self.lines:
            for seq in request.get_seqs():
                if seq.status is SWAPPED:
                    seq.transition(RUNNING)
                if seq.status is RUNNING:
                    seq.transition(WAITING)
                if seq.data.output_token_ids[-1:] == [UNKNOWN]:
                    seq.data.output_token_ids.pop()
                self._stale_seq_ids.append(seq.seq_id)
        self.lines.rebuild()

    def has_unfinished_requests(self) -> bool:
        return len(self.lines) > 0

    @property
    def num_running_seqs(self) -> int:
        return sum(request.get_num_seqs(RUNNING) for request in self.running)

    @property
    def num_used_tokens(self) -> int:
        """Tokens of running sequences whose keys and values are in the cache; shared ones count for each."""
        return sum(seq.num_computed_tokens for request in self.running for seq in request.get_seqs(RUNNING))

    def check_invariants(self) -> None:
        """What must hold between two steps. Raises RuntimeError: a block that is lost or owned twice, a request in the
        wrong line."""
        if self.num_running_seqs > self.max_num_seqs:
            raise RuntimeError(f"{self.num_running_seqs} sequences run, max_num_seqs is {self.max_num_seqs}")
        running = [seq for request in self.running for seq in request.get_seqs(RUNNING)]
        swapped = [seq for request in self.swapped for seq in request.get_seqs(SWAPPED)]
        self.kv.check_invariants(running, swapped)
        for request in self.lines:
            where = (request in self.running, request in self.waiting, request in self.swapped)
            if where != (request.has(RUNNING), request.has(WAITING), request.has(SWAPPED)):
                raise RuntimeError(
                    f"request {request.request_id} is in the wrong place (running, waiting, swapped): {where}"
                )
