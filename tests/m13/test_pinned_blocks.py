"""A host block of a CUDA engine, as a tier behind it reads and fills it: on the stand-in device, whose copies are under
way until somebody waits for them."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.worker.pinned_mover import PinnedBlockMover
from tests.fake_cuda import FakeCuda


def test_a_tier_reads_what_went_out_and_what_it_fills_comes_in(fake_cuda: FakeCuda) -> None:
    here = [torch.randn(2, 9, 4, 2, 8) for _ in range(3)]  # of each layer: keys and values, blocks, a block's numbers
    tensors = [tensor.to("cuda") for tensor in here]
    mover = PinnedBlockMover(SimpleNamespace(tensors=tensors), 7)  # type: ignore[arg-type]
    mover.move(SchedulerOutput(blocks_to_swap_out=[(3, 5), (8, 1)]))
    for block, host in ((3, 5), (8, 1)):  # layer by layer, keys before values
        expected = b"".join(half[block].numpy().tobytes() for tensor in here for half in tensor)
        assert b"".join(mover.host_block(host)) == expected
    mover.move(SchedulerOutput(blocks_to_swap_in=[(5, 2)]))
    mover.host_block(5)[0][:] = expected  # 8's, when 3's has come in
    mover.move(SchedulerOutput(blocks_to_swap_in=[(5, 4)]))
    for tensor, source in zip(tensors, here, strict=True):
        assert torch.equal(tensor[:, [2, 4]].cpu(), source[:, [3, 8]])
