"""A host block of a CUDA engine, as a tier behind it reads and fills it: on the stand-in device, whose copies are under
way until somebody waits for them."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.worker.pinned_mover import PinnedBlockMover
from tests.fake_cuda import FakeCuda

SHAPE = (2, 9, 4, 2, 8)  # keys and values, blocks, tokens, heads, numbers
HERE = [torch.randn(SHAPE, generator=torch.Generator().manual_seed(layer)) for layer in range(3)]


def make_mover() -> PinnedBlockMover:
    tensors = [tensor.to("cuda") for tensor in HERE]
    return PinnedBlockMover(SimpleNamespace(tensors=tensors), 7)  # type: ignore[arg-type]


def bytes_of(block: int) -> bytes:
    """Layer by layer, keys before values."""
    return b"".join(half[block].numpy().tobytes() for tensor in HERE for half in tensor)


def test_what_went_out_is_read_when_its_copy_has_ended(fake_cuda: FakeCuda) -> None:
    mover = make_mover()
    mover.move(SchedulerOutput(blocks_to_swap_out=[(3, 5), (8, 1)]))
    assert b"".join(mover.host_block(5)) == bytes_of(3)
    assert b"".join(mover.host_block(1)) == bytes_of(8)


def test_what_a_tier_puts_there_comes_in(fake_cuda: FakeCuda) -> None:
    mover = make_mover()
    (part,) = mover.host_block(6)
    part[:] = bytes_of(4)
    mover.move(SchedulerOutput(blocks_to_swap_in=[(6, 2)]))
    for tensor, expected in zip(mover.device_tensors, HERE, strict=True):
        assert torch.equal(tensor[:, 2].cpu(), expected[:, 4])
        assert torch.equal(tensor[:, 3:].cpu(), expected[:, 3:])


def test_a_block_is_not_filled_while_it_is_on_its_way_to_the_device(fake_cuda: FakeCuda) -> None:
    mover = make_mover()
    mover.move(SchedulerOutput(blocks_to_swap_out=[(3, 5)]))
    mover.move(SchedulerOutput(blocks_to_swap_in=[(5, 2)]))
    (part,) = mover.host_block(5)
    part[:] = bytes(len(part))
    assert torch.equal(mover.device_tensors[0][:, 2].cpu(), HERE[0][:, 3])
