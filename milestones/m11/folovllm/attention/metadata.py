"""What attention must know about a batch whose tokens are flat in one dimension.

Three sequences, one in prefill (4 new tokens), one decoding (1), one continuing at position 2 (3 new):

    input_ids        a0 a1 a2 a3 | b7 | c2 c3 c4          [num_tokens = 8]
    query_start_loc  0             4    5          8      [num_seqs + 1]   where each sequence's queries start
    seq_lens         4             8    5                 [num_seqs]       keys each sequence has after this step
    slot_mapping     where in the cache each of the 8 new tokens' K and V go
    block_tables     which blocks of the cache hold each sequence's K and V

vLLM: v1/attention/backend.py (CommonAttentionMetadata)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch


@dataclass
class AttentionMetadata:
    """Shapes in brackets; integer tensors on the model's device. Built once per forward, read by every layer."""

    query_start_loc: torch.Tensor
    """[num_seqs + 1] int32."""
    seq_lens: torch.Tensor
    """[num_seqs] int32. A sequence's last query is at position seq_len - 1."""
    slot_mapping: torch.Tensor
    """[num_tokens] int64: block * block_size + offset."""
    block_tables: torch.Tensor
    """[num_seqs, max_blocks] int32."""
    max_query_len: int
    max_seq_len: int
    num_decodes: int = 0
    """This many sequences at the front have one query each, so a kernel for decodes may compute them. It is a lower
    bound: sequences behind them may have one query, too."""
    decode_order: torch.Tensor | None = None
    """[leading_decodes] int32, each of their indices once, the longest first: in this order a kernel starts them. None:
    as they come."""
    last_rows_only: bool = False
    """Of what the model returns, only each sequence's last row is read. It may leave out what only others need."""

    further: list[AttentionMetadata] = field(default_factory=list)
    """The same for each further group of layers (kv_cache_groups.py), with slots and tables of that group. []: there is
    one group, or the step writes to the null block only."""

    def add_groups(self, slots: Iterable[torch.Tensor], tables: Iterable[torch.Tensor]) -> None:
        """Fill `further` in: of each group behind the first, its slot_mapping and its block_tables."""
        pairs = zip(slots, tables, strict=True)
        self.further = [replace(self, slot_mapping=each, block_tables=table) for each, table in pairs]

    def of_group(self, group: int) -> AttentionMetadata:
        return self.further[group - 1] if group and self.further else self

    @property
    def leading_decodes(self) -> int:
        """How many sequences at the front are known to have one query each."""
        return len(self.seq_lens) if self.max_query_len == 1 else self.num_decodes

    @cached_property
    def spans(self) -> list[tuple[int, int, int]]:
        """(query start, query end, seq_len) of each sequence as Python numbers, for backends that loop over sequences.

        Cached: a step reads it once per layer. On CUDA it costs a synchronisation, so kernels there do not use it.
        """
        starts = self.query_start_loc.tolist()
        return list(zip(starts[:-1], starts[1:], self.seq_lens.tolist(), strict=True))

    @cached_property
    def block_ids(self) -> list[list[int]]:
        """`block_tables` as Python numbers; cached like `spans`, and like it a synchronisation on CUDA."""
        return self.block_tables.tolist()
