"""Blocks are moved between a CUDA device and pinned memory as M3's mover moves them on a CPU, and the host waits for
nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.worker import pinned_mover
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.pinned_mover import PinnedBlockMover
from tests.fake_cuda import FakeCuda

NUM_LAYERS, NUM_BLOCKS, NUM_SWAP_BLOCKS = 3, 8, 7
SHAPE = (2, NUM_BLOCKS + 1, 4, 2, 8)
BLOCK_BYTES = NUM_LAYERS * 2 * 4 * 2 * 8 * 4


def random_moves(rng: random.Random, stored: set[int]) -> SchedulerOutput:
    """No block is written twice; only what has been stored comes in. `stored` is kept up."""
    empty = [block for block in range(1, NUM_SWAP_BLOCKS + 1) if block not in stored]
    out = list(zip(rng.sample(range(1, NUM_BLOCKS + 1), 3), rng.sample(empty, min(3, len(empty))), strict=False))
    back = rng.sample(sorted(stored), min(len(stored), rng.randrange(4)))
    targets = rng.sample(range(1, NUM_BLOCKS + 1), len(back) + 2)
    stored.difference_update(back)
    stored.update(block for _, block in out)
    return SchedulerOutput(
        blocks_to_swap_out=out,
        blocks_to_swap_in=list(zip(back, targets, strict=False)),
        blocks_to_copy=[(rng.randrange(1, NUM_BLOCKS + 1), target) for target in targets[len(back) :]],
    )


@pytest.mark.parametrize("slab_blocks", [1, 3, 100])
def test_the_same_moves_leave_the_same_blocks(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, slab_blocks: int
) -> None:
    """In a hundred steps, each queued behind the others."""
    monkeypatch.setattr(pinned_mover, "SLAB_BYTES", slab_blocks * BLOCK_BYTES)
    rng, stored = random.Random(0), set[int]()
    here = [torch.randn(SHAPE) for _ in range(NUM_LAYERS)]
    there = [tensor.to("cuda") for tensor in here]
    plain = BlockMover(SimpleNamespace(tensors=here), NUM_SWAP_BLOCKS)  # type: ignore[arg-type]
    pinned = PinnedBlockMover(SimpleNamespace(tensors=there), NUM_SWAP_BLOCKS)  # type: ignore[arg-type]
    with fake_cuda.no_waits():
        for _ in range(100):
            moves = random_moves(rng, stored)
            plain.move(moves)
            pinned.move(moves)
    for tensor, expected in zip(there, here, strict=True):
        assert torch.equal(tensor.cpu(), expected)


def one(**moves: Any) -> SchedulerOutput:
    return SchedulerOutput(**moves)


def test_pinned_memory_is_taken_when_a_block_first_goes_out(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_mover, "SLAB_BYTES", 2 * BLOCK_BYTES)
    tensors = [torch.zeros(SHAPE, device="cuda") for _ in range(NUM_LAYERS)]
    mover = PinnedBlockMover(SimpleNamespace(tensors=tensors), NUM_SWAP_BLOCKS)  # type: ignore[arg-type]
    sizes = []
    first, second = one(blocks_to_swap_out=[(1, 5)]), one(blocks_to_swap_out=[(2, 6)])
    for moves in (one(), one(blocks_to_copy=[(1, 2)]), first, second):
        mover.move(moves)
        sizes.append(sum(slab.nbytes for slab in mover._slabs.values()) // BLOCK_BYTES)
    assert sizes == [0, 0, 2, 2]
    mover.move(one(blocks_to_swap_out=[(3, 1)]))
    assert sum(slab.nbytes for slab in mover._slabs.values()) == 4 * BLOCK_BYTES


def test_a_block_is_one_copy_whatever_the_number_of_layers(fake_cuda: FakeCuda) -> None:
    tensors = [torch.zeros(SHAPE, device="cuda") for _ in range(NUM_LAYERS)]
    mover = PinnedBlockMover(SimpleNamespace(tensors=tensors), NUM_SWAP_BLOCKS)  # type: ignore[arg-type]
    fake_cuda.reset_counts()
    mover.move(one(blocks_to_swap_out=[(1, 5), (2, 6)]))
    assert fake_cuda.launches["memcpy d2h"] == 2
    mover.move(one(blocks_to_swap_in=[(5, 3), (6, 4)]))
    assert [size for size in fake_cuda.uploads if size >= BLOCK_BYTES] == [BLOCK_BYTES] * 2
