"""Blocks are moved as a plain loop would move them: out, in, copies, in this order, in all layers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.worker.block_mover import BlockMover

NUM_LAYERS, NUM_BLOCKS, NUM_SWAP_BLOCKS = 3, 6, 4


@pytest.fixture
def mover() -> BlockMover:
    """Random contents in both pools; row 0 of each is the null block."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, NUM_BLOCKS + 1, 4, 2, 8, generator=generator) for _ in range(NUM_LAYERS)]
    mover = BlockMover(SimpleNamespace(tensors=tensors), NUM_SWAP_BLOCKS)
    for tensor in mover.swap_tensors:
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return mover


def by_hand(mover: BlockMover, **moves: list[tuple[int, int]]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What both pools must hold after these moves."""
    device = [tensor.clone() for tensor in mover.device_tensors]
    swap = [tensor.clone() for tensor in mover.swap_tensors]
    for name, sources, targets in (("out", device, swap), ("in_", swap, device), ("copy", device, device)):
        for source, target in zip(sources, targets, strict=True):
            before = source.clone()
            for of, to in moves.get(name, []):
                target[:, to] = before[:, of]
    return device, swap


def check(mover: BlockMover, **moves: list[tuple[int, int]]) -> None:
    device, swap = by_hand(mover, **moves)
    mover.move(
        SchedulerOutput(
            blocks_to_swap_out=moves.get("out", []),
            blocks_to_swap_in=moves.get("in_", []),
            blocks_to_copy=moves.get("copy", []),
        )
    )
    for got, expected in zip([*mover.device_tensors, *mover.swap_tensors], [*device, *swap], strict=True):
        assert torch.equal(got, expected)


def test_out(mover):
    check(mover, out=[(3, 1), (5, 4), (1, 2)])


def test_in(mover):
    check(mover, in_=[(2, 6), (1, 1)])


def test_copy(mover):
    check(mover, copy=[(2, 5), (2, 6), (1, 3)])


def test_a_block_that_went_out_may_be_filled_in_the_same_step(mover):
    check(mover, out=[(3, 1)], in_=[(2, 3)], copy=[(4, 5)])
    check(mover, out=[(4, 3)], copy=[(2, 4)])


def test_a_block_that_has_just_come_in_may_be_copied(mover):
    check(mover, in_=[(3, 2)], copy=[(2, 4), (2, 5)])


def test_a_block_that_is_copied_may_be_written_over_by_another_copy(mover):
    check(mover, copy=[(2, 3), (4, 2)])


def test_there_and_back_in_two_steps(mover):
    before = [tensor[:, 5].clone() for tensor in mover.device_tensors]
    check(mover, out=[(5, 2)], copy=[(1, 5)])
    check(mover, in_=[(2, 4)])
    for tensor, block in zip(mover.device_tensors, before, strict=True):
        assert torch.equal(tensor[:, 4], block)


def test_nothing_to_move_moves_nothing(mover):
    check(mover)


def test_without_swap_space_there_is_a_null_block_only(mover):
    mover = BlockMover(SimpleNamespace(tensors=mover.device_tensors), 0)
    assert [tensor.shape[1] for tensor in mover.swap_tensors] == [1] * NUM_LAYERS
    for tensor in mover.swap_tensors:
        tensor.zero_()  # new memory may hold NaN, which equals nothing
    check(mover, copy=[(1, 2)])
