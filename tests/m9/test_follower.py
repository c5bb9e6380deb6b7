"""What rank 0 sends is what another rank computes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from folovllm.attention.metadata import AttentionMetadata
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.worker.follower import pack_moves, pack_step, step_sizes, unpack_moves, unpack_step


@pytest.mark.parametrize("order", [None, [], [1, 0]], ids=["no order", "no decodes", "two decodes"])
def test_a_step_is_unpacked_as_it_was(order: list[int] | None) -> None:
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, 1, 2, 5], dtype=torch.int32),
        seq_lens=torch.tensor([9, 12, 3], dtype=torch.int32),
        slot_mapping=torch.tensor([40, 51, 4, 5, 6]),
        block_tables=torch.tensor([[5, 10, 0], [3, 7, 12], [1, 0, 0]], dtype=torch.int32),
        max_query_len=3,
        max_seq_len=12,
        num_decodes=2,
        decode_order=None if order is None else torch.tensor(order, dtype=torch.int32),
        last_rows_only=True,
    )
    input_ids, positions = torch.tensor([7, 8, 1, 2, 3]), torch.tensor([8, 11, 0, 1, 2])
    numbers, flat = pack_step(input_ids, positions, metadata)
    assert sum(step_sizes(numbers)) == len(flat)
    ids, places, got = unpack_step(numbers, flat)
    assert (ids.tolist(), places.tolist()) == (input_ids.tolist(), positions.tolist())
    for field in dataclasses.fields(AttentionMetadata):
        want, is_ = getattr(metadata, field.name), getattr(got, field.name)
        if isinstance(want, torch.Tensor):
            assert (is_.dtype, is_.tolist()) == (want.dtype, want.tolist()), field.name
        else:
            assert is_ == want, field.name


def test_moves_are_unpacked_as_they_were() -> None:
    scheduled = SchedulerOutput(
        blocks_to_swap_out=[(3, 1), (4, 2)], blocks_to_swap_in=[], blocks_to_copy=[(5, 6), (5, 7), (9, 8)]
    )
    assert unpack_moves(pack_moves(scheduled)) == scheduled
