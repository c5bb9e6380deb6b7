"""Continuous batching over a paged KV cache, with chunked prefill: which sequences compute how many tokens in a step.

    1  decodes    every running sequence that lacks one token gets it; where no block is free, the newest request gives
                  way
    2  prefills   of running sequences go on, with chunks of what is left of the step's budget of tokens
    3  swapped    come back, and
       waiting    join, with a first chunk or a whole prompt: the oldest first, while there are tokens, sequences and
                  blocks left, and only in steps in which no request had to give way; a request whose adapter would be
                  one too many waits, and those behind it

    budget 8      step 1   B4 | A0 .. A6                              A, a prompt of 18 tokens, comes while B decodes:
                  step 2   B5 | A7 .. A10  | C0 C1 C2                 B is never kept waiting by a prompt, nor is C,
                  step 3   B6 | A11 .. A16 | C3                       a prompt of 3 (prompt_shares.py says why)

    schedule() ─▶ SchedulerOutput ─▶ the worker ─▶ update_from_output(): its tokens ─▶ finish(): what has ended

No request starves. An older one keeps its blocks, and a preempted one goes back to its old place in the line, ahead of
all that came later. The oldest can always go on, since a sequence that would not fit alone is never let in.

More than 300 lines: what a step takes and what its tokens change are the same state, which one class must keep.

Iteration-level scheduling: Orca (Yu et al., OSDI 2022). Chunks beside decodes: Sarathi-Serve (Agrawal et al., OSDI
2024). vLLM: v1/core/sched/scheduler.py; for swapping, V0's core/scheduler.py
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Set

from folovllm.config import SchedulerConfig
from folovllm.core.draft_length import DraftLength
from folovllm.core.draft_tokens import DraftTokens
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.preemption import Preempter, choose_victims
from folovllm.core.prompt_shares import half, share_out, top_up
from folovllm.core.request_queue import RequestLines
from folovllm.core.scheduler_output import UNKNOWN, Drafts, SchedulerOutput
from folovllm.core.sequence_group import SeqTokens, in_prefill, is_decode, rows_claimed, rows_needed, tokens_to_compute
from folovllm.core.step_record import StepRecord
from folovllm.request import Request, Sequence, SequenceStatus, check_stop

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED

# Admission leaves this share of the blocks free, or the newcomer would be preempted as soon as the others grow.
WATERMARK = 0.01

NO_DRAFTS: Drafts = {}


class Scheduler:
    """Decides which sequences compute what; the KV cache manager owns the blocks. budgets.py fills `config` in.

    Args:
        draft_length: how many draft tokens each sequence of a step gets; None: none.
        max_loras: most adapters that running requests may have, those of one content counted once.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        eos_token_ids: frozenset[int],
        draft_length: DraftLength | None = None,
        max_loras: int = 0,
    ) -> None:
        self.kv, self.eos_token_ids, self.max_loras = kv, eos_token_ids, max_loras
        self.record: StepRecord | None = None  # of the next step; None: nobody listens
        self.max_num_batched_tokens, self.max_model_len = config.max_num_batched_tokens, config.max_model_len
        self.lines = RequestLines(by_priority=config.policy == "priority")
        self.waiting, self.running, self.swapped = self.lines.waiting, self.lines.running, self.lines.swapped
        # Every running sequence must be able to decode in every step.
        self.max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self.chunks = config.enable_chunked_prefill
        cap = config.long_prefill_token_threshold if self.chunks else 0
        self.prompt_cap = config.max_num_batched_tokens if cap == 0 else cap  # None: prompts share (prompt_shares.py)
        self.largest_chunk = self.prompt_cap or config.max_num_batched_tokens
        self.max_num_partial_prefills = config.max_num_partial_prefills
        self.preempter = Preempter(kv, config.preemption_mode)
        self.held: Set[Request] = frozenset()  # running ones that sit out the next step: it needs what is not there yet
        self.watermark = int(WATERMARK * kv.pool.num_blocks)
        self.num_partial = self.owed_blocks = 0
        self._prefills: list[tuple[Request, SeqTokens]] = []
        self.finished_seq_ids: list[str] = []
        self._stale_seq_ids: list[str] = []
        self._changed_seqs: list[Sequence] = []  # whose block tables changed after their step
        self.drafts = DraftTokens(kv, config.max_model_len, draft_length)

    def add_request(self, request: Request) -> None:
        self.lines.add(request)
        self.kv.prefetch(request)
        if self.record is not None:
            self.record.arrived.append(request)

    def schedule(self) -> SchedulerOutput:
        """The next step."""
        output = SchedulerOutput(finished_seq_ids=self.finished_seq_ids, stale_seq_ids=self._stale_seq_ids)
        if (offload := self.kv.offload) is not None:
            offload.poll(wait=not (self.running or self.swapped) and all(map(offload.is_waiting, self.waiting)))
        # Prefills that this step does not end, and the blocks that their rest will take.
        self.num_partial = self.owed_blocks = 0
        must_wait, self._prefills = False, []
        for request in self.running:  # grows shorter from its end, as the newest give way
            if request not in self.held and not self._decode_in_place(request, output):
                for group in tokens_to_compute(request, request.get_seqs(RUNNING)):
                    if is_decode(group):
                        must_wait |= self._decode(request, group, output)
                    else:
                        self._prefills.append((request, group))
        if self._prefills:
            for request, group, share in share_out(self._prefills, self._left(output), self.prompt_cap):
                must_wait |= self._prefill(request, group, output, share)
        if not must_wait and (self.swapped or self.waiting):
            moved = self._let_in(output)
            if output.is_empty and not moved and self.running and not self.held:
                # Beams that have not all come back hold the blocks that the next request in line needs, which may be
                # more urgent than they are. Without this they would wait for each other for ever.
                newest = self.running[-1]
                self._preempt(newest, newest.get_seqs(RUNNING), output)
        for request, group in self._prefills if self.prompt_cap is None else ():
            self._end_prefills(request, top_up(group, output, self.kv, self._left(output)), output)
        if self._changed_seqs:
            output.grown_seqs += [seq for seq in self._changed_seqs if seq.status is RUNNING]
        # Cleared only here: a step that was interrupted did not tell the worker, and the next one must.
        self.finished_seq_ids, self._stale_seq_ids, self._changed_seqs = [], [], []
        self.drafts.add(output, self._left(output), self.watermark + self.owed_blocks)
        if offload is not None:
            offload.add_moves(output, self.kv.pool)
        if self.record is not None:
            self.record = self.record.take(output, self.kv, self.lines)
        return output

    def _let_in(self, output: SchedulerOutput) -> bool:
        """Swapped requests come back and waiting ones join, the oldest first, while there are rows, tokens and blocks
        left. Returns whether any did."""
        rows_left, moved = self.max_num_seqs - sum(map(rows_claimed, self.running)), False
        aside: list[Request] = []  # wait for what a tier reads, and are passed by others meanwhile
        while self.swapped or self.waiting:
            if self.waiting and self.kv.offload is not None and self.kv.offload.is_waiting(self.waiting.peek()):
                aside.append(self.waiting.pop())
                continue
            key = self.lines.key
            comes_back = not self.waiting or (self.swapped and key(self.swapped[0]) <= key(self.waiting.peek()))
            request = self.swapped[0] if comes_back else self.waiting.peek()
            taken = None
            if self._has_slot_for_adapter(request):
                taken = (self._swap_in if comes_back else self._admit)(request, rows_left, output)
            if taken is None:
                break
            rows_left, moved = rows_left - taken, True
        for request in aside:
            self.lines.enter_waiting(request)
        return moved

    def _has_slot_for_adapter(self, request: Request) -> bool:
        if request.lora is None:
            return True
        running = {each.lora.digest for each in self.running if each.lora is not None}
        return len(running | {request.lora.digest}) <= self.max_loras

    def _decode_in_place(self, request: Request, output: SchedulerOutput) -> bool:
        """The usual case: one sequence, one token, and its last block has room. Most requests do nothing else in most
        steps, and it takes a tenth of the time of asking for blocks."""
        if len(request.sequences) > 1 or output.total_num_scheduled_tokens >= self.max_num_batched_tokens:
            return False
        (seq,) = request.sequences.values()
        if seq.get_len() - seq.num_computed_tokens != 1 or not self.kv.has_slot(seq):
            return False
        output.add(seq, 1)
        return True

    def _decode(self, request: Request, group: SeqTokens, output: SchedulerOutput) -> bool:
        """One token for each of the group. True when another request had to give way for it."""
        if len(group) > self._left(output):
            return False
        must_wait = self._make_way(request, group, output)
        self._end_prefills(request, group, output)  # a prompt's last chunk may be a single token
        return must_wait

    def _prefill(self, request: Request, group: SeqTokens, output: SchedulerOutput, share: int | None = None) -> bool:
        """As much as fits of what the group lacks, or `share` of it. True when there are not enough blocks for that, or
        another request had to give way for them."""
        seq_tokens: SeqTokens = []
        left = self._left(output) if share is None else share
        for seq, num_tokens in group:
            if seq.status is RUNNING and (size := self._chunk(num_tokens, left)):
                seq_tokens.append((seq, size))
                left -= size
        must_wait = False
        if seq_tokens and not self._grant(seq_tokens, output):
            if not output.is_empty:
                # The newest may compute in this very step already. It will end, and then there are blocks.
                return True
            must_wait = self._make_way(request, seq_tokens, output)
        for seq, num_tokens in group:
            self._note_rest(seq, num_tokens - dict(seq_tokens).get(seq, 0))
        self._end_prefills(request, seq_tokens, output)
        return must_wait

    def _end_prefills(self, request: Request, seq_tokens: SeqTokens, output: SchedulerOutput) -> None:
        for seq, num_tokens in seq_tokens:
            ends = in_prefill(seq) and seq.num_computed_tokens + num_tokens >= seq.get_prompt_len()
            if ends and seq.status is RUNNING:
                self._fork_siblings(request, seq, self.max_num_seqs - sum(map(rows_claimed, self.running)), output)

    def _left(self, output: SchedulerOutput) -> int:
        return self.max_num_batched_tokens - output.total_num_scheduled_tokens

    def _chunk(self, num_tokens: int, left: int) -> int:
        """How many of `num_tokens` a sequence may compute where `left` are left of the budget."""
        if self.chunks:
            return min(num_tokens, left, self.largest_chunk)
        return num_tokens if num_tokens <= left else 0

    def _note_rest(self, seq: Sequence, num_tokens: int) -> None:
        """So many tokens of `seq` are left for later steps."""
        if num_tokens > 0 and seq.status is RUNNING:
            self.num_partial += 1
            self.owed_blocks += self.kv.blocks_to_come(seq, len(seq.block_ids), seq.get_len())

    def _make_way(self, request: Request, seq_tokens: SeqTokens, output: SchedulerOutput) -> bool:
        """Put sequences into the step. While there are too few blocks for them, the newest request is preempted, in the
        end their own. True when one was."""
        preempted = False
        while seq_tokens[0][0].status is RUNNING and not self._grant(seq_tokens, output):
            newest, preempted = self.running[-1], True
            self._preempt(newest, choose_victims(newest, request), output)
        return preempted

    def _grant(self, seq_tokens: SeqTokens, output: SchedulerOutput, keep_free: int = 0) -> bool:
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
        if request.has(WAITING):  # also those that waited aside for a sibling's prefill
            self.lines.enter_waiting(request)
        if self.record is not None:
            self.record.preempted += [(seq, seq.status) for seq in victims]

    def _swap_in(self, request: Request, rows_left: int, output: SchedulerOutput) -> int | None:
        """Bring a swapped request back and let it compute. Its sequences come together, so that what they share stays
        shared; where that is too much, one of them comes alone (beams cannot).

        Returns how many rows it takes, with those of siblings that fork because its prompt comes to its end;
        None if there is not enough of anything.
        """
        swapped = request.get_seqs(SWAPPED)
        claimed = rows_claimed(request) if request in self.running else 0
        together = [swapped] if request.sampling_params.use_beam_search else [swapped, swapped[:1]]
        for seqs in together:
            if rows_needed(request, len(seqs), runs=request in self.running) > rows_left:
                continue
            if (moves := self.kv.swap_in(seqs, self._reserve(request))) is not None:
                output.blocks_to_swap_in += moves
                for seq in seqs:
                    seq.transition(RUNNING)
                self.lines.settle(request)
                if self.record is not None:
                    self.record.resumed += seqs
                if any(in_prefill(seq) for seq in seqs):
                    self.waiting.remove(request)
                for group in tokens_to_compute(request, seqs):
                    serve = self._decode if is_decode(group) else self._prefill
                    serve(request, group, output)
                return rows_claimed(request) - claimed
        return None

    def _admit(self, request: Request, rows_left: int, output: SchedulerOutput) -> int | None:
        """Start the next waiting sequence of a request.

        Returns how many rows it takes, None when rows, tokens or blocks are used up: then those behind it wait as well,
        or a long prompt could be overtaken for ever.
        """
        rows = rows_needed(request, 1, runs=request in self.running)
        if rows > rows_left:
            return None
        if any(map(in_prefill, request.get_seqs(RUNNING))):
            return None  # when that has ended there will be something to share
        seq = request.get_seqs(WAITING)[0]
        shared = self.kv.get_computed_blocks(request, seq)
        num_tokens = seq.get_len() - seq.num_computed_tokens
        if request.sampling_params.use_beam_search and seq.get_output_len() > 0:
            num_tokens -= 1  # it catches up with the other beams first
        chunk = self._chunk(num_tokens, self._left(output))
        if chunk < num_tokens and self.prompt_cap is None:
            chunk = half(chunk)
        if not self._admit_chunk(request, seq, num_tokens, chunk, output):
            self.kv.free(seq)
            return None
        seq.transition(RUNNING)
        self.lines.settle(request)
        if self.record is not None:
            self.record.admitted.append((seq, seq.num_computed_tokens))
        if chunk < num_tokens:
            self._note_rest(seq, num_tokens - chunk)
            self._prefills.append((request, [(seq, num_tokens)]))
        if seq.num_computed_tokens + chunk >= seq.get_prompt_len():
            rows += self._fork_siblings(request, seq, 0 if shared else rows_left - rows, output)
        else:
            self.waiting.remove(request)  # its siblings wait aside
        return rows

    def _admit_chunk(
        self, request: Request, seq: Sequence, num_tokens: int, chunk: int, output: SchedulerOutput
    ) -> bool:
        """The first chunk of a sequence that lacks num_tokens, if all of it will find blocks."""
        if chunk == 0 < num_tokens:
            return False
        if chunk < num_tokens and self.num_partial >= self.max_num_partial_prefills:
            return False
        computed = seq.num_computed_tokens
        rest = self.kv.blocks_to_come(seq, self.kv.blocks_for(computed + chunk), computed + num_tokens)
        return self._grant([(seq, chunk)], output, self._reserve(request) + self.owed_blocks + rest)

    def _fork_siblings(self, request: Request, seq: Sequence, rows_left: int, output: SchedulerOutput) -> int:
        """The prompt of `seq` will have been computed by this step. It is prefilled once: siblings that have not begun
        draw their first token from the same logits, as many as there is room for; the others go on waiting.

        Returns how many were forked.
        """
        children: list[Sequence] = []
        if seq.get_output_len() == 0:
            children = [child for child in request.get_seqs(WAITING) if child.get_output_len() == 0][:rows_left]
        for child in children:
            self.kv.fork(seq, child, seq.get_prompt_len())
            child.transition(RUNNING)
            output.forks.append((seq, child))
        if request.has(WAITING):
            self.lines.enter_waiting(request)
        else:
            self.waiting.remove(request)
        return len(children)

    def _reserve(self, request: Request) -> int:
        """Blocks that an admission must leave free. Alone, a request may have them all."""
        return self.watermark if self.running not in ([], [request]) else 0

    def update_from_output(
        self,
        output: SchedulerOutput,
        token_ids: Iterable[int | None],
        failed: Container[str] = (),
        drafts: Drafts = NO_DRAFTS,
        pooled: Container[str] = (),
    ) -> list[tuple[Sequence, SequenceStatus | None]]:
        """Take in a step's tokens, one per row of `output`; None where it brought none.

        failed: ids of sequences whose requests are about to be ended, for they went wrong in this step.
        drafts: by sequence id, what came of the draft tokens for which the step had room.
        pooled: ids of sequences that end with their prompt, and this step has computed it: they gain no token.

        Returns the sequences that gained a token, once for each token, with the status that this token brings about, if
        any, and those that end without one. They are ended by finish(), later, since a stop string may have a say. A
        sequence that was aborted meanwhile is passed over.
        """
        if not output.is_assumed:
            self.advance(output)
        if self.kv.offload is not None:
            self.kv.offload.moved(output)
        self._cache_blocks(output, failed)
        gained: list[tuple[Sequence, SequenceStatus | None]] = []
        for seq, token_id in zip(output.rows, token_ids, strict=True):
            if seq.status is RUNNING and token_id is not None:
                token_ids_so_far = seq.data.output_token_ids
                if token_ids_so_far and token_ids_so_far[-1] == UNKNOWN:
                    token_ids_so_far[-1] = token_id
                else:
                    token_ids_so_far.append(token_id)
                gained.append((seq, check_stop(seq, self.eos_token_ids, self.max_model_len)))
            elif seq.status is RUNNING and seq.seq_id in pooled:
                gained.append((seq, SequenceStatus.FINISHED_STOPPED))
        if output.num_lookahead_tokens:
            further, changed = self.drafts.take_in(output, drafts, dict(gained), self.eos_token_ids)
            gained += further
            self._changed_seqs += changed
            if self.record is not None:  # blocks that only draft tokens needed were given back
                self.record.changed += output.scheduled_seqs
        return gained

    def advance(self, output: SchedulerOutput) -> None:
        """A step has been computed, or will have been before anything else is: its keys and values count as there, but
        for those of draft tokens, which are not in num_scheduled_tokens."""
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            if seq.status is RUNNING:
                seq.num_computed_tokens += num_tokens

    def _cache_blocks(self, output: SchedulerOutput, failed: Container[str]) -> None:
        """Blocks that have become full may be kept for others, now that the step is known to have gone well: what a
        failed sequence computed may be NaN."""
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            is_full = seq.num_computed_tokens % self.kv.block_size < num_tokens
            if is_full and seq.status is RUNNING and seq.seq_id not in failed:
                self._changed_seqs += self.kv.cache_blocks(seq)

    def fork(self, request: Request, parent: Sequence, child: Sequence) -> None:
        """A child that shares all that its parent, which runs, has computed."""
        self.kv.fork(parent, child, parent.num_computed_tokens)
        request.add_seq(child)
        if self.record is not None:
            self.record.branched.append((parent, child))

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
        self.kv.forget(seq)
        self.finished_seq_ids.append(seq.seq_id)

    def start_over(self) -> None:
        """A step was cut short, and what the cache holds is not known: all requests wait again, in their old places."""
        self.kv.clear(seq for request in self.lines for seq in request.get_seqs())
        self._changed_seqs = []
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
        if self.record is not None:
            self.record, self.kv.pool.events = StepRecord(arrived=self.record.arrived), []

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
            # A sequence that will fork from a sibling in its prefill need not be in line.
            aside = not where[1] and any(in_prefill(seq) for seq in request.get_seqs(RUNNING))
            if where != (request.has(RUNNING), request.has(WAITING) and not aside, request.has(SWAPPED)):
                raise RuntimeError(
                    f"request {request.request_id} is in the wrong place (running, waiting, swapped): {where}"
                )
