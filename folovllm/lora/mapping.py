"""Which rows of a step have which adapter: made once a step, and read by every layer.

    tokens        a a b . b c            slots   0  0  2 -1  2  1
    rows          0 1 | 5 | 2 4          grouped by slot; row 3 has no adapter
    slots, ends   0   | 1 | 2 ;  2 3 5

vLLM: lora/layers/utils.py (LoRAMapping), lora/ops/triton_ops/lora_kernel_metadata.py
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch


class Groups(NamedTuple):
    """int64. rows[ends[g - 1] : ends[g]] have the adapter in slots[g]."""

    slots: torch.Tensor
    ends: torch.Tensor
    rows: torch.Tensor


def group_rows(slots: torch.Tensor) -> Groups:
    """`slots` [num_rows]: of each row's adapter, -1: none. The rows of a group rise, and so do the slots."""
    order = torch.argsort(slots, stable=True)
    order = order[slots[order] >= 0]
    found, counts = torch.unique_consecutive(slots[order], return_counts=True)
    return Groups(found, counts.cumsum(0), order)


class LoRAMapping:
    """slots: [num_tokens] int64, on the model's device."""

    def __init__(self, slots: torch.Tensor) -> None:
        self.slots = slots
        self._sorted: tuple[torch.Tensor, torch.Tensor] | None = None

    @cached_property
    def groups(self) -> Groups:
        return group_rows(self.slots)

    @cached_property
    def spans(self) -> list[tuple[int, torch.Tensor]]:
        """(slot, its rows), for torch's products, group by group."""
        slots, ends, rows = self.groups
        sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
        return list(zip(slots.tolist(), rows.split(sizes), strict=True))

    def sorted_rows(self, num_slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """For a kernel, without asking the device how many have an adapter: all rows by slot, those without one first,
        and [1 + num_slots] where those without one end, and those of each slot."""
        if self._sorted is None:
            slots, rows = self.slots.sort(stable=True)
            every = torch.arange(-1, num_slots, device=slots.device)
            self._sorted = rows, torch.searchsorted(slots, every, right=True)
        return self._sorted

    def take(self, rows: torch.Tensor) -> LoRAMapping:
        """Of these rows, by their places in `rows`."""
        return LoRAMapping(self.slots[rows])
