"""How a step with prompts is padded, so that a CUDA graph can replay it: a fixed number of tokens and of sequences.

Behind the tokens of the step comes padding, which is a sequence of its own:

    tokens      d0 d1 | a0 a1 a2 a3 a4 | b0 b1 b2 | – – – – – –        2 decodes, 2 prompts, 10 tokens of 16

Attention gets the sequences as two batches, one for each of its kernels, whose grids follow from their sizes alone:

    decodes     d0 d1 .  .  .  .        those that are not there have no keys: their programs end at once
    prompts     a  b  .  .  .  –        those that are not there have no query; the last one is the padding

Row i belongs to decode i. Rows of decodes that are not there are tokens of prompts or padding, which the kernel for
prompts writes.

Padding reads and writes the null block. Its tokens fill as many slots of it as they read, so none of them is NaN.

A step in which sequences verify drafts, and nothing else is done, has shapes of its own. All its sequences are prompts
that are short enough for the kernel for decodes, and padding belongs to no sequence.

vLLM: none, its kernel for attention takes decodes and prompts as one batch (v1/attention/backends/triton_attn.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch

from folovllm.attention.metadata import AttentionMetadata

SIZES = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""In tokens. Launching a step takes the host 14 ms, and 2,048 tokens of Qwen3-0.6B an H200 some 5 ms, as predicted."""
MAX_PROMPTS = 16
"""Sequences with several tokens, beside the padding. A program for one that is not there costs some time, too."""
FEW_DECODES = 8
"""Attention divides decodes into splits by the room that there is: with room for 256, a long one beside a short prompt
is left to the few programs of one sequence. So there are graphs for none, for few, and for as many as may come."""
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sequences that verify drafts."""


@dataclass(frozen=True)
class PromptShape:
    """What one graph has room for."""

    num_tokens: int
    num_decodes: int
    num_prompts: int = MAX_PROMPTS + 1
    draft_len: int = 0
    """Most draft tokens of a sequence, in a step that verifies some."""

    @property
    def num_seqs(self) -> int:
        return self.num_decodes + self.num_prompts

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Of the arrays in int32: seq_lens, query_start_loc and decode_order."""
        return self.num_seqs, self.num_seqs + 1, self.num_decodes

    @property
    def num_words(self) -> int:
        """Of pack(), where all layers are in one group: three arrays of int64, and those of int32."""
        return 3 * self.num_tokens + -(-sum(self.lengths) // 2)

    def pack(
        self, arrays: Sequence[np.ndarray], ends: np.ndarray, block_size: int, further: Sequence[np.ndarray] = ()
    ) -> np.ndarray:
        """[num_words + len(further) * num_tokens] int64 of a step with decodes in front.

        arrays: token_ids, positions and slots of its tokens, seq_lens of its sequences, decode_order of its decodes.
        ends: behind which token each sequence ends.  further: the slots of each further group of layers.
        """
        token_ids, positions, slots, seq_lens, order = arrays
        size = self.num_tokens
        packed = np.zeros(self.num_words + len(further) * size, np.int64)
        count, decodes = len(token_ids), min(len(order), self.num_decodes)
        by_token, by_group = packed[: 3 * size].reshape(3, size), packed[self.num_words :].reshape(-1, size)
        by_token[:2, :count] = token_ids, positions
        for row, of_group in zip([by_token[2], *by_group], [slots, *further], strict=True):
            row[:count], row[count:] = of_group, np.arange(size - count) % block_size
        lens, starts, decode_order, _ = np.split(packed[3 * size :].view(np.int32), np.cumsum(self.lengths))
        first, behind = self.num_decodes, self.num_decodes + len(seq_lens) - decodes
        lens[:decodes], lens[first:behind] = seq_lens[:decodes], seq_lens[decodes:]
        starts[:first], starts[first], starts[first + 1 : behind + 1] = np.arange(first), decodes, ends[decodes:]
        starts[behind + 1 :] = count
        if not self.draft_len:  # the padding is a sequence
            lens[-1], starts[-1] = size - count, size
        decode_order[:decodes], decode_order[decodes:] = order[:decodes], np.arange(decodes, first)
        return packed

    def unpack(
        self, packed: torch.Tensor, block_tables: torch.Tensor, max_seq_len: int
    ) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """input_ids, positions and metadata, views of pack()'s array on the device, behind which there may be more. The
        lengths of sequences are not known when a graph is recorded, so the longest allowed is given.

        block_tables: [num_groups, num_seqs, max_blocks]."""
        size, words = self.num_tokens, self.num_words
        input_ids, positions, slots = packed[: 3 * size].view(3, -1).unbind(0)
        seq_lens, starts, order = packed[3 * size :].view(torch.int32)[: sum(self.lengths)].split(list(self.lengths))
        metadata = AttentionMetadata(
            query_start_loc=starts, seq_lens=seq_lens, slot_mapping=slots, block_tables=block_tables[0],
            max_query_len=1 + self.draft_len if self.draft_len else size, max_seq_len=max_seq_len,
            num_decodes=self.num_decodes, decode_order=order,
        )  # fmt: skip
        further = packed[words : words + (len(block_tables) - 1) * size].view(-1, size)
        metadata.add_groups(further, block_tables[1:])
        return input_ids, positions, metadata


def draft_shapes(draft_len: int, max_num_seqs: int, fewest: int = 1) -> list[PromptShape]:
    """The graphs to record for steps that verify drafts of up to `draft_len` tokens. fewest: tokens of each."""
    most = min(max_num_seqs, SIZES[-1] // (1 + draft_len))
    sizes = [*takewhile(lambda size: size < most, BATCHES), most]
    return [PromptShape(max(fewest, size * (1 + draft_len)), 0, size, draft_len) for size in sizes]


def prompt_shapes(max_tokens: int, max_num_seqs: int) -> list[PromptShape]:
    """The graphs to record for steps of up to `max_tokens` tokens, the smallest first, and of those of a size the one
    with the fewest decodes."""
    largest = min(max_tokens, SIZES[-1])
    sizes = [*takewhile(lambda size: size < largest, SIZES), largest]
    rooms = [sorted({0, *(min(size, max_num_seqs, most) for most in (FEW_DECODES, size))}) for size in sizes]
    return [PromptShape(size, room) for size, each in zip(sizes, rooms, strict=True) for room in each]
