"""The persistent batch: arrays that live across steps, one row per running sequence.

    row   token_ids                      num_tokens  num_computed  block_table
    0     5 17 9 4 31 …                  5           4             [3]
    1     –                              free
    2     8 8 2 …                        3           0             [0]

A step's inputs are cut out of these arrays by a few vectorised operations, for any number of sequences. What changes
from step to step is little: a row is written when a sequence joins, and grows by one token per step.

The next step may be prepared before this one's tokens have come to the host. Their places here are then still empty,
but the device has the tokens, in last_tokens[row], and puts them into the inputs.

    row   token_ids        num_tokens  num_known        host     input_ids  9 ?
    0     5 17 9           3           3                            ▲
    1     8 8 2 ?          4           3                device   last_tokens[1] = 31 ─▶ input_ids  9 31

vLLM: v1/worker/gpu_input_batch.py, v1/worker/block_table.py, v1/worker/gpu_model_runner.py (_prepare_input_ids),
v1/worker/gpu/input_batch.py, v1/worker/gpu/states.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from folovllm.attention.metadata import AttentionMetadata
from folovllm.lora.mapping import LoRAMapping
from folovllm.request import Sequence
from folovllm.utils.upload import longest_first, pack_inputs, unpack_inputs, upload
from folovllm.worker.prompt_shape import PromptShape

Forks = list[tuple[Sequence, Sequence]]


@dataclass(slots=True)
class StepInputs:
    """What one forward needs; tensors on the model's device."""

    input_ids: torch.Tensor
    """[num_tokens] int64."""
    positions: torch.Tensor
    """[num_tokens] int64."""
    metadata: AttentionMetadata
    rows: np.ndarray
    """[num_seqs] the rows of the batch that compute tokens, in the order of the step."""
    num_new: np.ndarray
    """[num_seqs] how many each of them computes."""
    draws: np.ndarray
    """Which of the step's rows draw a token: numbers into [*scheduled sequences, *forked children]."""
    drawn_rows: torch.Tensor
    """[num_draws] the rows of the batch that these have."""
    num_drawn: np.ndarray
    """[num_draws] from how many tokens' logits each of them may draw: one, and one for each draft token."""
    logits_at: torch.Tensor | None
    """[sum of num_drawn] the flat tokens from whose logits is drawn. None: each token is drawn from, in order."""
    packed: torch.Tensor
    """Of a padded step: [3 + num_groups, pad_to] int64, of which input_ids, positions and slot_mapping are rows, and
    seq_lens, in int32, the first half of the fourth; behind it are the further groups' slots. So a CUDA graph's inputs
    are one copy, and the block tables another. Of a step with a PromptShape: what that packs. Of others: empty."""
    tables: torch.Tensor
    """[num_groups, num_seqs, max_blocks] int32: the block tables; of a padded step, of pad_to sequences."""


class FlatTokens(NamedTuple):
    """The tokens that a step computes, those of all its sequences one after the other."""

    rows: np.ndarray  # [num_tokens] of the batch
    positions: np.ndarray  # [num_tokens]
    ends: np.ndarray  # [num_seqs] where each sequence's tokens end
    seq_lens: np.ndarray  # [num_seqs] with these tokens
    max_seq_len: int


@dataclass(slots=True)
class Expected:
    """Where tokens belong that have been drawn and have not come to the host yet."""

    rows: np.ndarray
    positions: np.ndarray
    serials: np.ndarray
    """Serial numbers of the sequences that had these rows: when the tokens come, a row may be another sequence's."""


class InputBatch:
    """Args:
    max_num_seqs: rows.
    max_model_len: tokens that a row can hold.
    block_size: tokens per block of the KV cache.
    num_groups: of layers that share a block table.
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, device: torch.device, num_groups: int = 1
    ) -> None:
        self.block_size, self.device = block_size, device
        max_blocks = -(-max_model_len // block_size)
        # Zeros of this size cost no memory until they are written: the system hands out pages at first touch.
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int64)
        self.block_tables = [np.zeros((max_num_seqs, max_blocks), np.int64) for _ in range(num_groups)]
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_known = np.zeros(max_num_seqs, np.int64)  # tokens that the host knows: all, or all but the last
        self.num_computed = np.zeros(max_num_seqs, np.int64)
        self.last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.device_drafts: torch.Tensor | None = None  # the next step's draft tokens, if the device alone knows them
        self._serials = np.zeros(max_num_seqs, np.int64)
        self._num_added = 0
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._row_of: dict[str, int] = {}
        self._rows_for: tuple[list[Sequence] | None, np.ndarray] = None, np.empty(0, np.int64)
        self._free_rows = list(range(len(self.num_tokens) - 1, -1, -1))

    def __contains__(self, seq_id: str) -> bool:
        return seq_id in self._row_of

    def add(self, seq: Sequence) -> None:
        """Give a sequence a row and write all that is known of it."""
        row = self._row_of[seq.seq_id] = self._free_rows.pop()
        self._rows_for = None, self._rows_for[1]
        num_prompt, num_tokens = seq.get_prompt_len(), seq.get_len()
        self.token_ids[row, :num_prompt] = seq.data.prompt_token_ids
        self.token_ids[row, num_prompt:num_tokens] = seq.data.output_token_ids
        self.set_blocks(seq)
        self.num_tokens[row] = self.num_known[row] = num_tokens
        self._num_added += 1
        self._serials[row] = self._num_added
        self.num_computed[row] = seq.num_computed_tokens

    def remove(self, seq_id: str) -> None:
        """Free a row. An id without a row is no error: the sequence may have ended before its first step."""
        row = self._row_of.pop(seq_id, None)
        if row is not None:
            self._free_rows.append(row)

    def _rows_of(self, seqs: list[Sequence]) -> np.ndarray:
        """Found once for the same sequences, which are as a rule those of the step before."""
        if self._rows_for[0] != seqs:
            self._rows_for = list(seqs), np.array([self._row_of[seq.seq_id] for seq in seqs], np.int64)
        return self._rows_for[1]

    def set_blocks(self, seq: Sequence) -> None:
        """Copy a sequence's block table, which has changed. One without a row is no error: add() copies its table."""
        row = self._row_of.get(seq.seq_id)
        if row is not None:
            for table, block_ids in zip(self.block_tables, seq.tables, strict=False):
                table[row, : len(block_ids)] = block_ids

    def prepare(
        self, seqs: list[Sequence], num_scheduled_tokens: list[int], forks: Forks, pad_to: int | None = None,
        shape: PromptShape | None = None, lora_slots: list[int] | None = None,
    ) -> StepInputs:  # fmt: skip
        """Make the inputs of a step in which sequence i computes num_scheduled_tokens[i] tokens.

        Two sequences, of which the first computes 3 tokens from position 0 and the second 1 token from position 7:

            start 0 7 · num_new 3 1 ─▶ flat rows 0 0 0 1 · positions 0 1 2 7 ─▶ token_ids[row, position], slots

        A sequence draws from the logits of its last token, if the step gets that far; a forked child from its
        parent's.

        pad_to: for a step that a CUDA graph replays, how many tokens the arrays shall have. To its kernels each token
        is a sequence: a draft token is another one with the same block table, and one token longer. The added ones read
        and write slot 0, in the null block, which no sequence uses.

        shape: of the CUDA graph that replays a step with prompts, for which the arrays are packed once more.
        lora_slots: of each sequence's adapter, -1: none; None: no sequence has one.
        """
        rows, num_new = self._rows_of(seqs), np.array(num_scheduled_tokens)
        flat = self._flatten(rows, num_new)
        draws, drawn_rows, num_drawn, logits_at = self._find_draws(seqs, rows, flat, forks)
        arrays, num_decodes = self._pack(rows, num_new, flat, pad_to)
        # Tokens that only the device knows are put in there.
        unknown = np.flatnonzero(flat.positions >= self.num_known[flat.rows])
        none = np.empty(0, np.int64)
        at, for_graph = none if logits_at is None else logits_at, none
        if shape is not None:
            for_graph = shape.pack(arrays[:5], flat.ends, self.block_size, arrays[7:])
        slots_of_tokens = none if lora_slots is None else np.array(lora_slots, np.int64).repeat(num_new)
        *step, device_drawn_rows, unknown_at, unknown_rows, device_logits_at, device_lora_slots, packed = upload(
            self.device, *arrays, drawn_rows, unknown, flat.rows[unknown], at, slots_of_tokens, for_graph
        )
        if pad_to is None:
            input_ids, positions, slots, lens, order, starts, tables, *further = step
        else:
            packed, starts, tables = step
            input_ids, positions, slots, lens, order = unpack_inputs(packed[:4])
            further = [packed[row] for row in range(4, len(packed))]
        if len(unknown) == len(flat.rows):
            torch.index_select(self.last_tokens, 0, unknown_rows, out=input_ids[: len(unknown)])
        elif len(unknown):
            drafts = self.device_drafts
            tokens = self.last_tokens.index_select(0, unknown_rows) if drafts is None else drafts
            input_ids.index_copy_(0, unknown_at, tokens)
        self.device_drafts = None
        metadata = AttentionMetadata(
            query_start_loc=starts, seq_lens=lens, slot_mapping=slots, block_tables=tables[0], decode_order=order,
            max_query_len=int(num_new.max()) if pad_to is None else 1, max_seq_len=flat.max_seq_len,
            num_decodes=num_decodes,
        )  # fmt: skip
        if lora_slots is not None:
            metadata.lora = LoRAMapping(device_lora_slots)
        if further:
            metadata.add_groups(further, tables[1:])
        drawn_from = None if logits_at is None else device_logits_at
        return StepInputs(
            input_ids, positions, metadata, rows, num_new, draws, device_drawn_rows, num_drawn, drawn_from, packed,
            tables,
        )  # fmt: skip

    def _flatten(self, rows: np.ndarray, num_new: np.ndarray) -> FlatTokens:
        start = self.num_computed[rows]
        seq_lens, ends = start + num_new, num_new.cumsum()
        flat_rows, positions = rows, start
        if ends[-1] > len(rows):  # else one token each: nothing to repeat
            flat_rows, positions = rows.repeat(num_new), np.arange(ends[-1]) + (seq_lens - ends).repeat(num_new)
        return FlatTokens(flat_rows, positions, ends, seq_lens, int(seq_lens.max()))

    def _find_draws(
        self, seqs: list[Sequence], rows: np.ndarray, flat: FlatTokens, forks: Forks
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """StepInputs.draws, the rows of the batch that these have, num_drawn and logits_at."""
        num_behind = flat.seq_lens - self.num_tokens[rows]  # draft tokens, where it is not negative
        draws = np.flatnonzero(num_behind >= 0)
        num_drawn, drawn_rows = num_behind[draws] + 1, rows[draws]
        logits_at = flat.ends[draws] - num_drawn
        if len(num_drawn) and num_drawn.max() > 1:
            firsts = num_drawn.cumsum() - num_drawn
            logits_at = (logits_at - firsts).repeat(num_drawn) + np.arange(num_drawn.sum())
        if forks:
            index_of = {seq.seq_id: index for index, seq in enumerate(seqs)}
            parents = [index_of[parent.seq_id] for parent, _ in forks]
            draws = np.concatenate([draws, np.arange(len(seqs), len(seqs) + len(forks))])
            logits_at = np.concatenate([logits_at, flat.ends[parents] - 1])
            drawn_rows = np.concatenate([drawn_rows, [self._row_of[child.seq_id] for _, child in forks]])
            num_drawn = np.concatenate([num_drawn, np.ones(len(forks), np.int64)])
        in_order = not forks and len(logits_at) == flat.ends[-1]  # a pure decode step
        return draws, drawn_rows, num_drawn, None if in_order else logits_at

    def _pack(
        self, rows: np.ndarray, num_new: np.ndarray, flat: FlatTokens, pad_to: int | None
    ) -> tuple[tuple[np.ndarray, ...], int]:
        """What the model and attention read, on the host: token ids, positions, slots, lengths and order, in one array
        for a CUDA graph; starts; block tables; slots of further groups. And how many of the first sequences compute one
        token."""
        token_ids = self.token_ids[flat.rows, flat.positions]
        entries, offsets = flat.positions // self.block_size, flat.positions % self.block_size
        slots, *further = [table[flat.rows, entries] * self.block_size + offsets for table in self.block_tables]
        max_blocks, of_seqs = -(-flat.max_seq_len // self.block_size), rows if pad_to is None else flat.rows
        tables = np.array([table[of_seqs, :max_blocks] for table in self.block_tables], np.int32)
        if pad_to is None:
            several = np.flatnonzero(num_new > 1)
            num_decodes = int(several[0]) if len(several) else len(rows)
            order = longest_first(flat.seq_lens[:num_decodes], 0)
            starts, lens = np.concatenate([[0], flat.ends]).astype(np.int32), flat.seq_lens.astype(np.int32)
            return (token_ids, flat.positions, slots, lens, order, starts, tables, *further), num_decodes
        starts = np.arange(pad_to + 1, dtype=np.int32)
        # A sequence's rows stay together: what one of them reads, the next finds in the GPU's cache.
        order = longest_first(flat.seq_lens.repeat(num_new), pad_to - len(slots))
        padded = np.zeros((len(tables), pad_to, max_blocks), np.int32)
        padded[:, : len(slots)] = tables
        packed = pack_inputs(pad_to, token_ids, flat.positions, slots, flat.positions + 1, order)
        if further:
            behind = np.zeros((len(further), pad_to), np.int64)
            behind[:, : len(slots)] = further
            packed = np.concatenate([packed, behind])
        return (packed, starts, padded), pad_to

    def advance(self, inputs: StepInputs, drawn: list[Sequence]) -> Expected:
        """After the step: what was computed is in the cache, and the sequences of `drawn` are one token longer each.
        last_tokens has the tokens; fill() gets them later, with what is returned here."""
        self.num_computed[inputs.rows] += inputs.num_new
        rows = self._rows_of(drawn)
        expected = Expected(rows, self.num_tokens[rows], self._serials[rows])
        self.num_tokens[rows] += 1
        return expected

    def fill(self, expected: Expected, token_ids: np.ndarray) -> None:
        """The tokens have come: write them where they belong."""
        same = self._serials[expected.rows] == expected.serials
        rows, positions = expected.rows[same], expected.positions[same]
        self.token_ids[rows, positions] = token_ids[same]
        self.num_known[rows] = positions + 1

    def set_drafts(self, seq: Sequence, draft: list[int]) -> None:
        """Draft tokens are written behind a row's tokens, all of which are known, until settle() says which stay."""
        row = self._row_of[seq.seq_id]
        end = self.num_tokens[row] + len(draft)
        self.token_ids[row, self.num_tokens[row] : end] = draft
        self.num_known[row] = end

    def settle(self, inputs: StepInputs, seqs: list[Sequence], gained: list[list[int]]) -> None:
        """advance() and fill() of a step with draft tokens, whose tokens are here: seqs[i] drew, and gained these."""
        self.num_computed[inputs.rows] += inputs.num_new
        for seq, num_drawn, token_ids in zip(seqs, inputs.num_drawn, gained, strict=True):
            row = self._row_of[seq.seq_id]
            start, end = self.num_tokens[row], self.num_tokens[row] + len(token_ids)
            self.token_ids[row, start:end] = token_ids
            self.num_tokens[row] = self.num_known[row] = end
            self.num_computed[row] -= max(0, num_drawn - len(token_ids))
