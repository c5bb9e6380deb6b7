"""A head that reads the target (models/eagle.py) as a proposer: keep hidden states, cut, catch up.

    the sequence            t0 t1 t2 t3 t4 t5          t5 was drawn last: the target has computed t0 .. t4
    hidden states           h0 h1 h2 h3 h4             of every step's rows, also of guesses: those behind h4 are cut
    the head has keys of    t0 t1 t2                   slot i: t(i) beside h(i-1)
    first forward           t3,h2  t4,h3  t5,h4 ─▶ g6
    then                                   g6,· ─▶ g7  its own output in the place of h5

So what a guess left in a slot is computed anew once the target has been there. Hidden states are kept from one before
the first slot without keys on. A prompt's keys are computed in its own step, and a sequence that is not asked for
guesses catches up when it lacks more than FEW.

Behind a prefix hit, in a fork and in a sequence that came back, the hidden state before the first slot is not there:
zeros take its place. One key is worse then, and with it perhaps a guess.

vLLM: v1/spec_decode/eagle.py, llm_base_proposer.py
"""

from __future__ import annotations

import numpy as np
import torch

from folovllm.core.scheduler_output import UNKNOWN, SchedulerOutput
from folovllm.layers.linear import Linear
from folovllm.models.eagle import EagleHead
from folovllm.models.greedy_run import greedy_run, in_bfloat16, prepared_run
from folovllm.request import Sequence
from folovllm.sample.sampler import greedy
from folovllm.spec_decode.draft_model import block_tables, forward_inputs, tokens_between
from folovllm.utils.upload import upload
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.pinned_mover import PinnedBlockMover
from folovllm.worker.proposer import Proposer

FEW = 8
"""Tokens that a sequence may lack while nobody asks for its guesses."""


class EagleProposer(Proposer):
    """Args:
    head, lm_head: the one's layer, and the target's product. On `device`.
    kv_cache: the head's, with as many blocks as the target's, of the same size; num_swap_blocks, too, as there.
    """

    reads_hidden = True

    def __init__(
        self, head: EagleHead, lm_head: Linear, kv_cache: KVCache, num_swap_blocks: int, device: torch.device
    ) -> None:
        self.head, self.kv_cache, self.device = head, kv_cache, device
        self.lm_head = in_bfloat16(lm_head)  # most of what a guess reads
        self.dtype = kv_cache.tensors[0].dtype
        self.mover = (PinnedBlockMover if device.type == "cuda" else BlockMover)(kv_cache, num_swap_blocks)
        for tensor in kv_cache.tensors:  # a slot may be read that was never written, and 0 * nan is nan
            tensor.zero_()
        self._held: dict[str, tuple[int, torch.Tensor]] = {}
        """How many tokens of a sequence have keys here; hidden states, [any, hidden], from one before the next on."""

    def read(self, seqs: list[Sequence], nums: list[int], hidden: torch.Tensor) -> None:
        """Keep the hidden states of this step, hidden[:nums[0]] of seqs[0] and so on, which begin at the position
        seq.num_computed_tokens: behind those that are kept already, but for rows of wrong guesses. A sequence of which
        more than FEW tokens with a hidden state before them lack keys gets them by _catch_up(); draft tokens do not
        count, nor does an UNKNOWN one."""
        at, behind = 0, []
        for seq, num in zip(seqs, nums, strict=True):
            start, new = seq.num_computed_tokens, hidden[at : at + num]
            held, rows = self._held.get(seq.seq_id, (start, new[:0]))
            if not held <= start + 1 <= held + len(rows):  # nothing is known of the token before
                held, rows = start, new.new_zeros(1, new.shape[1])
            self._held[seq.seq_id] = held, torch.cat([rows[: start + 1 - held], new])
            at += num
            known = seq.get_len() - (seq.get_last_token_id() == UNKNOWN)
            if (end := min(start + num, known)) - held > FEW:
                behind.append((seq, end))
        if behind:
            self._catch_up(behind)

    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        """The head's likeliest continuation of each sequence, counts[i] tokens."""
        drafts: list[list[int]] = [[] for _ in seqs]
        # Those that still want tokens are the first ones.
        indices = sorted((index for index in range(len(seqs)) if counts[index]), key=lambda index: -counts[index])
        if not indices:
            return drafts
        chosen, wanted = [seqs[index] for index in indices], [counts[index] for index in indices]
        tables = block_tables(chosen)
        known, starts, before = self._take([(seq, seq.get_len()) for seq in chosen])
        if prepared_run(self.head, self.lm_head) is not None:
            found = greedy_run(self.head, self.head.embed_tokens, self.lm_head, known, starts, wanted, tables, before)
            for index, run in zip(indices, found.tolist(), strict=True):
                drafts[index] = run[: counts[index]]
            return drafts
        out = self._forward(known, starts, before, tables)
        for ahead in range(1, max(wanted) + 1):
            tokens = greedy(self.lm_head(out)).tolist()
            for index, token in zip(indices, tokens, strict=True):
                drafts[index].append(token)
            indices = [index for index in indices if counts[index] > ahead]
            if indices:
                last, ends = [[drafts[index][-1]] for index in indices], [seqs[index].get_len() for index in indices]
                out = self._forward(last, [end + ahead - 1 for end in ends], out[: len(last)], tables[: len(last)])
        return drafts

    def move(self, scheduled: SchedulerOutput) -> None:
        self.mover.move(scheduled)

    def forget(self, seq_id: str) -> None:
        self._held.pop(seq_id, None)

    def _catch_up(self, ends: list[tuple[Sequence, int]]) -> None:
        """Compute keys of these sequences' tokens, up to there."""
        known, starts, before = self._take(ends)
        self._forward(known, starts, before, block_tables([seq for seq, _ in ends]))

    def _take(self, ends: list[tuple[Sequence, int]]) -> tuple[list[list[int]], list[int], torch.Tensor]:
        """Of each sequence the tokens without keys up to its end and the position of the first one, and the hidden
        states before all of them, [tokens, hidden]. From now on these have keys. Where those hidden states are not
        there, it is the token before the end alone, and zeros."""
        known, starts, before = [], [], []
        nothing = torch.zeros(1, self.head.decoder_spec.hidden_size, dtype=self.dtype, device=self.device)
        for seq, end in ends:
            held, rows = self._held.get(seq.seq_id, (end, nothing))
            if not held < end <= held + len(rows):
                held, rows = end - 1, nothing
            known.append(tokens_between(seq, held, end))
            starts.append(held)
            before.append(rows[: end - held])
            self._held[seq.seq_id] = end, rows[end - held :]
        return known, starts, torch.cat(before)

    def _forward(
        self, known: list[list[int]], starts: list[int], before: torch.Tensor, tables: np.ndarray
    ) -> torch.Tensor:
        """The head's output at each sequence's last token, [num_seqs, hidden]."""
        ids, nums = np.array([token for tokens in known for token in tokens]), [len(tokens) for tokens in known]
        positions, metadata = forward_inputs(starts, nums, tables, self.kv_cache.block_size, self.device)
        metadata.last_rows_only = True
        (device_ids,) = upload(self.device, ids)
        return self.head(device_ids, before, positions, metadata)[metadata.query_start_loc[1:].long() - 1]
