"""Draft tokens of a step: room for them once everything else is decided.

    budget of 12      decodes  A 1 · B 1 · C 1      a prompt  D 5      4 are left: A gets two drafts, B and C get one

A draft token never takes what is needed. Decodes come first, then prompts, and drafts get what is left of the step's
tokens and of the blocks; no request gives way for one. Which tokens they are is not known here: only how many.

What is computed for a draft token counts when the token was accepted. Until then it is beyond the sequence's last
token: it is not in num_computed_tokens, it is never put into the prefix cache, and the blocks that only draft tokens
needed are given back at the end of the step.

    scheduler   num_lookahead_tokens ─▶ worker   proposes, computes, verifies ─▶ VerifiedDraft   update_from_output()

The worker proposes in the step that computes the proposal, as in vLLM's V0: only then does each sequence have blocks
for it, and is it known how many share the step.

vLLM: V0's spec_decode/spec_decode_worker.py (num_lookahead_slots); v1/core/sched/scheduler.py (num_lookahead_tokens,
update_from_output)
"""

from __future__ import annotations

from folovllm.core.draft_length import DraftLength
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler_output import UNKNOWN, Drafts, SchedulerOutput, VerifiedDraft
from folovllm.core.sequence_group import in_prefill
from folovllm.request import Sequence, SequenceStatus, check_stop


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
        """Give a step that has so many tokens left room for draft tokens, and leave so many blocks free."""
        if self.length is None:
            return
        most = self.length.choose(len(output.scheduled_seqs))
        output.drafts_follow = most > 0
        if most == 0:
            return
        seqs = [seq for seq in output.scheduled_seqs if may_have_drafts(seq)]
        for number, seq in enumerate(seqs):
            share, num_blocks = -(-left // (len(seqs) - number)), len(seq.block_ids)  # what is left for each to come
            count = self.kv.allocate_lookahead(seq, min(most, share, self._most(seq)), keep_free)
            if len(seq.block_ids) > num_blocks:
                output.grown_seqs.append(seq)
            if count > 0:
                output.num_lookahead_tokens[seq.seq_id] = count
                left -= count

    def _most(self, seq: Sequence) -> int:
        """A step brings one token without any draft; no more than this many others can be wanted."""
        most, max_tokens = self.max_model_len - seq.get_len(), seq.sampling_params.max_tokens
        return (most if max_tokens is None else min(most, max_tokens - seq.get_output_len())) - 1

    def take_in(
        self,
        output: SchedulerOutput,
        drafts: Drafts,
        first: dict[Sequence, SequenceStatus | None],
        eos_token_ids: frozenset[int],
    ) -> tuple[list[tuple[Sequence, SequenceStatus | None]], list[Sequence]]:
        """Append what was drawn behind the first tokens of a step, up to a token that ends its sequence, and count the
        draft tokens that were right as computed. first: the sequences that gained a first token, and what it brought.

        Returns the same for the further tokens, once for each, and the sequences whose block tables have changed.
        """
        self._record(output, drafts)
        gained: list[tuple[Sequence, SequenceStatus | None]] = []
        changed: list[Sequence] = []
        for seq in output.scheduled_seqs:
            if seq.seq_id not in output.num_lookahead_tokens or seq.status is not SequenceStatus.RUNNING:
                continue
            num_accepted, ended = 0, first.get(seq)
            for token_id in drafts[seq.seq_id].next_token_ids if seq in first and seq.seq_id in drafts else ():
                if ended is None:
                    seq.data.output_token_ids.append(token_id)
                    num_accepted, ended = num_accepted + 1, check_stop(seq, eos_token_ids, self.max_model_len)
                    gained.append((seq, ended))
            self.kv.accept_draft_tokens(seq, num_accepted)
            if seq.num_computed_tokens % self.kv.block_size < num_accepted:
                changed += self.kv.cache_blocks(seq)
        return gained, changed

    def _record(self, output: SchedulerOutput, drafts: Drafts) -> None:
        """Count what came of a step's draft tokens."""
        for seq_id in output.num_lookahead_tokens:
            draft = drafts.get(seq_id, VerifiedDraft([], []))
            proposed, accepted = len(draft.draft_token_ids), len(draft.next_token_ids)
            self.num_drafts += proposed > 0
            self.num_draft_tokens += proposed
            self.num_accepted_per_pos += [0] * (accepted - len(self.num_accepted_per_pos))
            for position in range(accepted):
                self.num_accepted_per_pos[position] += 1
            if self.length is not None:
                self.length.record(proposed, accepted)


def may_have_drafts(seq: Sequence) -> bool:
    """Whether draft tokens can follow: its last token is known, and is all that this step computes of it. Beams draw
    together, one token a step."""
    return (
        seq.get_len() - seq.num_computed_tokens == 1
        and not in_prefill(seq)
        and not seq.sampling_params.use_beam_search
        and seq.get_last_token_id() != UNKNOWN
    )
