"""Carries out what the scheduler decided about blocks, before the step's forward: swap out, swap in, copy-on-write.

    device   [ 1 ][ 2 ][ 3 ][ 4 ] …        swap out (3, 1)   device block 3 ─▶ swap block 1
                      ▲    │               swap in  (1, 4)   swap block 1   ─▶ device block 4
    swap          [ 1 ]◀───┘               copy     (2, 5)   device block 2 ─▶ device block 5

In this order: a block that was swapped out may be handed out again in the same step, and a block that has just come in
may be copied at once. Each kind is one gather and one scatter per layer, whatever the number of blocks.

vLLM: V0's worker/cache_engine.py
"""

from __future__ import annotations

import torch

from folovllm.core.scheduler_output import BlockPairs, SchedulerOutput
from folovllm.worker.kv_cache import KVCache


class BlockMover:
    """Owns the swap space: per layer a CPU tensor of num_swap_blocks blocks (and a null block). Linux takes no
    memory for it before it is first written."""

    def __init__(self, kv_cache: KVCache, num_swap_blocks: int) -> None:
        self.device_tensors = kv_cache.tensors
        self.swap_tensors = [
            torch.empty((2, num_swap_blocks + 1, *each.shape[2:]), dtype=each.dtype) for each in kv_cache.tensors
        ]

    def move(self, scheduled: SchedulerOutput) -> None:
        _copy(self.device_tensors, self.swap_tensors, scheduled.blocks_to_swap_out)
        _copy(self.swap_tensors, self.device_tensors, scheduled.blocks_to_swap_in)
        _copy(self.device_tensors, self.device_tensors, scheduled.blocks_to_copy)


def _copy(sources: list[torch.Tensor], targets: list[torch.Tensor], pairs: BlockPairs) -> None:
    """Copy block a of the source to block b of the target, for every (a, b), in all layers."""
    if not pairs:
        return
    of, to = zip(*pairs, strict=True)
    source_ids, target_ids = torch.tensor(of), torch.tensor(to)
    for source, target in zip(sources, targets, strict=True):
        blocks = source.index_select(1, source_ids.to(source.device))
        target.index_copy_(1, target_ids.to(target.device), blocks.to(target.device))
