"""Draft tokens of a step: room for them once everything else is decided.

    budget of 12      decodes  A 1 · B 1 · C 1      a prompt  D 5      4 are left: A gets two drafts, B and C get one

A draft token never takes what is needed. Decodes come first, then prompts, and drafts get what is left of the step's
tokens and of the blocks; no request gives way for one. Which tokens they are is not known here: only how many.

What is computed for a draft counts when the draft was kept. Until then it is beyond the sequence's last token: it is
not in num_computed_tokens, it is never put into the prefix cache, and the blocks that only drafts needed are given back
at the end of the step.

vLLM: v1/core/sched/scheduler.py (num_scheduled_spec_tokens), v1/core/kv_cache_manager.py (num_lookahead_tokens)
"""

from __future__ import annotations

from folovllm.core.draft_length import DraftLength
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler_output import UNKNOWN, SchedulerOutput
from folovllm.core.sequence_group import in_prefill
from folovllm.request import Sequence, SequenceStatus


class DraftTokens:
    """Args:
    length: how many draft tokens each sequence of a step gets; None: none.
    """

    def __init__(self, kv: KVCacheManager, max_model_len: int, length: DraftLength | None) -> None:
        self.kv, self.max_model_len, self.length = kv, max_model_len, length
        self.num_drafts = self.num_draft_tokens = 0  # runs of draft tokens, and draft tokens
        self.num_accepted_per_pos: list[int] = []
        """Draft tokens that were kept, by their position in the run."""

    def add(self, output: SchedulerOutput, left: int, keep_free: int) -> None:
        """Put draft tokens into a step that has so many tokens left, and must leave so many blocks free."""
        if self.length is None:
            return
        most = self.length.choose(len(output.scheduled_seqs))
        output.guesses_follow = most > 0
        if most == 0:
            return
        places = [place for place, seq in enumerate(output.scheduled_seqs) if may_have_drafts(seq)]
        for number, place in enumerate(places):
            share = -(-left // (len(places) - number))  # what is left for each that is to come
            seq = output.scheduled_seqs[place]
            count = self._take_blocks(seq, min(most, share, self._most(seq)), keep_free, output)
            if count > 0:
                output.num_drafts[seq.seq_id] = count
                output.num_scheduled_tokens[place] += count
                output.total_num_scheduled_tokens += count
                left -= count

    def _most(self, seq: Sequence) -> int:
        """A step brings one token without any draft; no more than this many others can be wanted."""
        most, max_tokens = self.max_model_len - seq.get_len(), seq.sampling_params.max_tokens
        return (most if max_tokens is None else min(most, max_tokens - seq.get_output_len())) - 1

    def _take_blocks(self, seq: Sequence, count: int, keep_free: int, output: SchedulerOutput) -> int:
        """Blocks for `count` draft tokens, if there are enough to spare. Returns for how many there is room."""
        has = len(seq.block_ids)
        needed = self.kv.blocks_for(seq.get_len() + count) - has
        if needed > 0:
            if self.kv.pool.num_free - needed < keep_free:
                return min(count, has * self.kv.block_size - seq.get_len())
            seq.block_ids += self.kv.pool.get_new_blocks(needed, after=seq.block_ids[-1])
            output.grown_seqs.append(seq)
        return count

    def take_back(self, output: SchedulerOutput) -> None:
        """All tokens of a step were counted as computed; those of drafts are not."""
        for seq in output.scheduled_seqs if output.num_drafts else ():
            if seq.status is SequenceStatus.RUNNING:
                seq.num_computed_tokens -= output.num_drafts.get(seq.seq_id, 0)

    def end(self, output: SchedulerOutput, later: list[SchedulerOutput]) -> None:
        """All tokens of a step with drafts have come in. later[i]: the sequences of which draft i was kept."""
        for seq in output.scheduled_seqs:
            if seq.seq_id in output.num_drafts and seq.status is SequenceStatus.RUNNING:
                self.give_back(seq)
        self.num_accepted_per_pos += [0] * (len(later) - len(self.num_accepted_per_pos))
        accepted = dict.fromkeys(output.num_drafts, 0)
        for position, part in enumerate(later):
            self.num_accepted_per_pos[position] += len(part.scheduled_seqs)
            for seq in part.scheduled_seqs:
                accepted[seq.seq_id] += 1
        for seq_id, count in output.num_drafts.items():
            if self.length is not None:
                self.num_drafts += count > 0
                self.num_draft_tokens += count
                self.length.record(count, accepted[seq_id])

    def give_back(self, seq: Sequence) -> None:
        """Free the blocks beyond what the tokens of a running sequence need, the last one first."""
        num_needed = self.kv.blocks_for(seq.get_len())
        self.kv.pool.free_blocks(reversed(seq.block_ids[num_needed:]))
        del seq.block_ids[num_needed:]


def may_have_drafts(seq: Sequence) -> bool:
    """Whether draft tokens can follow: its last token is known, and is all that this step computes of it. Beams draw
    together, one token a step."""
    return (
        seq.get_len() - seq.num_computed_tokens == 1
        and not in_prefill(seq)
        and not seq.sampling_params.use_beam_search
        and seq.get_last_token_id() != UNKNOWN
    )
