"""The persistent batch: arrays that live across steps, one row per running sequence.

    row   token_ids                      num_tokens  num_computed  block_table
    0     5 17 9 4 31 …                  5           4             [3]
    1     –                              free
    2     8 8 2 …                        3           0             [0]

A step's inputs are cut out of these arrays by a few vectorised operations, for any number of sequences. What changes
from step to step is little: a row is written when a sequence joins, and grows by one token per step.

vLLM: v1/worker/gpu_input_batch.py, v1/worker/block_table.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from folovllm.attention.metadata import AttentionMetadata
from folovllm.request import Sequence


@dataclass(slots=True)
class StepInputs:
    """What one forward needs; tensors on the model's device."""

    input_ids: torch.Tensor
    """[num_tokens] int64."""
    positions: torch.Tensor
    """[num_tokens] int64."""
    metadata: AttentionMetadata
    rows: np.ndarray
    """[num_seqs] the rows of the batch that take part, in the order of the step."""
    num_new: np.ndarray
    """[num_seqs] tokens that each of them computes."""
    last: torch.Tensor | None
    """[num_seqs] where in the flat tokens each sequence's last one is; None when each has just one."""


class InputBatch:
    """Args:
    max_num_seqs: rows.
    max_model_len: tokens that a row can hold.
    block_size: tokens per block of the KV cache.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        self.block_size, self.device = block_size, device
        max_blocks = -(-max_model_len // block_size)
        # Zeros of this size cost no memory until they are written: the system hands out pages at first touch.
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int64)
        self.block_table = np.zeros((max_num_seqs, max_blocks), np.int64)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_computed = np.zeros(max_num_seqs, np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(len(self.num_tokens) - 1, -1, -1))

    def __contains__(self, seq_id: str) -> bool:
        return seq_id in self._row_of

    def add(self, seq: Sequence) -> None:
        """Give a sequence a row and write all that is known of it."""
        row = self._row_of[seq.seq_id] = self._free_rows.pop()
        num_prompt, num_tokens = seq.get_prompt_len(), seq.get_len()
        self.token_ids[row, :num_prompt] = seq.data.prompt_token_ids
        self.token_ids[row, num_prompt:num_tokens] = seq.data.output_token_ids
        self.block_table[row, : len(seq.block_ids)] = seq.block_ids
        self.num_tokens[row] = num_tokens
        self.num_computed[row] = seq.num_computed_tokens

    def remove(self, seq_id: str) -> None:
        """Free a row. An id without a row is no error: the sequence may have ended before its first step."""
        row = self._row_of.pop(seq_id, None)
        if row is not None:
            self._free_rows.append(row)

    def _rows_of(self, seqs: list[Sequence]) -> np.ndarray:
        return np.array([self._row_of[seq.seq_id] for seq in seqs], np.int64)

    def prepare(self, seqs: list[Sequence], num_scheduled_tokens: list[int]) -> StepInputs:
        """Make the inputs of a step in which sequence i computes num_scheduled_tokens[i] tokens.

        Two sequences, of which the first computes 3 tokens from position 0 and the second 1 token from position 7:

            start 0 7 · num_new 3 1 ─▶ flat rows 0 0 0 1 · positions 0 1 2 7 ─▶ token_ids[row, position], slots
        """
        rows = self._rows_of(seqs)
        num_new = np.array(num_scheduled_tokens)
        start = self.num_computed[rows]
        seq_lens = start + num_new
        ends = num_new.cumsum()
        if ends[-1] == len(seqs):  # one token each: nothing to repeat
            flat_rows, positions, last = rows, start, None
        else:
            flat_rows = rows.repeat(num_new)
            positions = np.arange(ends[-1]) + (seq_lens - ends).repeat(num_new)
            last = torch.from_numpy(ends - 1).to(self.device)
        blocks = self.block_table[flat_rows, positions // self.block_size]
        max_seq_len = int(seq_lens.max())
        max_blocks = -(-max_seq_len // self.block_size)
        metadata = AttentionMetadata(
            query_start_loc=self._int32(np.concatenate([[0], ends])),
            seq_lens=self._int32(seq_lens),
            slot_mapping=torch.from_numpy(blocks * self.block_size + positions % self.block_size).to(self.device),
            block_tables=self._int32(self.block_table[rows, :max_blocks]),
            max_query_len=int(num_new.max()),
            max_seq_len=max_seq_len,
        )
        input_ids = torch.from_numpy(self.token_ids[flat_rows, positions]).to(self.device)
        positions_on_device = torch.from_numpy(positions).to(self.device)
        return StepInputs(input_ids, positions_on_device, metadata, rows, num_new, last)

    def advance(self, inputs: StepInputs, token_ids: np.ndarray) -> None:
        """After the step: what was computed is in the cache, and token_ids [num_seqs] are appended to the rows."""
        rows = inputs.rows
        self.num_computed[rows] += inputs.num_new
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1

    def _int32(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int32)).to(self.device)
