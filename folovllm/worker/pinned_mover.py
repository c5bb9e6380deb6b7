"""Moves blocks between a CUDA device and the host without ever waiting: a block's keys and values of all layers are
side by side in pinned memory, so that one copy takes them all.

    device   layer 0  [ 1 ][ 2 ][ 3 ] …   gather                 copies, queued
             layer 1  [ 1 ][ 2 ][ 3 ] …  ───────▶ staging [3 | 1] ───────▶ swap block 7 = [layer 0, layer 1, …], 8 = …

A copy is queued if the host's side is pinned and in one piece; a gather on the host, or a block's two hundred pieces of
32 KB, would be neither that nor fast. Pinned memory is taken a slab at a time, when a block is first swapped out.

vLLM: v1/kv_offload/cpu/gpu_worker.py
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import torch

from folovllm.core.scheduler_output import BlockPairs, SchedulerOutput
from folovllm.utils.upload import upload
from folovllm.worker.block_mover import as_bytes
from folovllm.worker.kv_cache import KVCache

# Of a slab, and of what is staged on the device at once. A power of two: torch's allocator for pinned memory rounds up.
SLAB_BYTES = 64 << 20


class PinnedBlockMover:
    """BlockMover for CUDA: the same moves in the same order, all queued on the device's stream."""

    def __init__(self, kv_cache: KVCache, num_swap_blocks: int) -> None:
        self.device_tensors = kv_cache.tensors
        first = self.device_tensors[0]  # [2, num_blocks, block_size, num_kv_heads, head_size]
        self.device, self.dtype = first.device, first.dtype
        self._block_shape = (len(self.device_tensors), 2, *first.shape[2:])
        block_bytes = int(np.prod(self._block_shape)) * first.element_size()
        self._slab_blocks = max(1, min(SLAB_BYTES // block_bytes, num_swap_blocks))
        self._slabs: dict[int, torch.Tensor] = {}
        self._slabs_lock = threading.Lock()  # a tier behind host memory fills blocks in its own thread
        self._moved = torch.cuda.Event()

    @torch.inference_mode()
    def move(self, scheduled: SchedulerOutput) -> None:
        for pairs in self._portions(scheduled.blocks_to_swap_out):
            self._swap_out(pairs)
        for pairs in self._portions(scheduled.blocks_to_swap_in):
            self._swap_in(pairs)
        if scheduled.blocks_to_copy:
            sources, targets = self._ids(scheduled.blocks_to_copy)
            for tensor in self.device_tensors:
                tensor.index_copy_(1, targets, tensor.index_select(1, sources))
        self._moved.record()

    def host_block(self, block: int) -> list[memoryview]:
        """As BlockMover's; waits until what has been moved is there."""
        self._moved.synchronize()
        return [as_bytes(self._host_block(block))]

    def _portions(self, pairs: BlockPairs) -> Iterator[BlockPairs]:
        for start in range(0, len(pairs), self._slab_blocks):
            yield pairs[start : start + self._slab_blocks]

    def _ids(self, pairs: BlockPairs) -> list[torch.Tensor]:
        """The first and the second numbers, on the device."""
        of, to = np.array(pairs, np.int64).T
        return upload(self.device, of, to)

    def _swap_out(self, pairs: BlockPairs) -> None:
        staging, (ids, _) = self._staging(len(pairs)), self._ids(pairs)
        for layer, tensor in enumerate(self.device_tensors):
            staging[:, layer] = tensor.index_select(1, ids).transpose(0, 1)
        for index, (_, swap_block) in enumerate(pairs):
            self._host_block(swap_block).copy_(staging[index], non_blocking=True)

    def _swap_in(self, pairs: BlockPairs) -> None:
        staging, (_, ids) = self._staging(len(pairs)), self._ids(pairs)
        for index, (swap_block, _) in enumerate(pairs):
            staging[index].copy_(self._host_block(swap_block), non_blocking=True)
        for layer, tensor in enumerate(self.device_tensors):
            tensor.index_copy_(1, ids, staging[:, layer].transpose(0, 1))

    def _staging(self, count: int) -> torch.Tensor:
        return torch.empty((count, *self._block_shape), dtype=self.dtype, device=self.device)

    def _host_block(self, swap_block: int) -> torch.Tensor:
        """[num_layers, 2, block_size, num_kv_heads, head_size]. Block 0 is the null block, which is never moved."""
        slab, index = divmod(swap_block - 1, self._slab_blocks)
        with self._slabs_lock:
            if slab not in self._slabs:
                shape = (self._slab_blocks, *self._block_shape)
                self._slabs[slab] = torch.empty(shape, dtype=self.dtype, pin_memory=True)
        return self._slabs[slab][index]
