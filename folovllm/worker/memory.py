"""How many blocks the KV cache gets: what the configuration says, else a share of the memory that the weights leave.

A CPU's memory is shared with other programs, so the cache takes a quarter of what is free; a Mac's GPU has no other.
A CUDA GPU's memory belongs to the engine: the cache takes gpu_memory_utilization of all of it, less what is in use, and
less what a full-size step takes on top, which is measured by running one. It never takes more than could be used.

vLLM: v1/core/kv_cache_utils.py; v1/worker/gpu_worker.py, cpu_worker.py (determine_available_memory)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from folovllm.config import CacheConfig, SchedulerConfig
from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.utils.checks import wrong
from folovllm.utils.devices import total_memory_bytes
from folovllm.utils.memory import GIB, free_memory_bytes, release_freed_memory

CPU_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The KV cache in blocks, and why it has that many."""

    num_blocks: int
    num_swap_blocks: int
    block_size: int
    block_bytes: int
    reason: str
    groups: KVCacheGroups
    max_model_len: int
    num_offload_blocks: int = 0
    """Of CPU memory, behind those of the swap space: they keep full blocks."""

    @property
    def num_host_blocks(self) -> int:
        return self.num_swap_blocks + self.num_offload_blocks

    @property
    def num_tokens(self) -> int:
        """How long a sequence that has all blocks can get."""
        return self.groups.longest(self.num_blocks, self.max_model_len)

    def __str__(self) -> str:
        num_bytes = self.num_blocks * self.block_bytes
        size = f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"
        swap = f"{self.num_swap_blocks:,} swap blocks" if self.num_swap_blocks else "no swap space"
        swap += f", {self.num_offload_blocks:,} blocks kept in CPU memory" if self.num_offload_blocks else ""
        holds = f"of {self.block_size} tokens = {self.num_tokens:,} tokens"
        if self.groups.windows != (None,):
            needed = self.groups.most_blocks(self.max_model_len)
            holds = (
                f"of {self.block_size} tokens in 1 of {len(self.groups.windows)} groups of layers = "
                f"{self.num_blocks / needed:.1f} sequences of {self.max_model_len:,} tokens"
            )
        return f"{self.num_blocks:,} blocks {holds}, {size} ({self.reason}); {swap}"


def size_kv_cache(
    token_bytes: int, cache: CacheConfig, limits: SchedulerConfig, device: torch.device,
    measure_step: Callable[[], int], sharing: int = 1, groups: KVCacheGroups | None = None,
) -> CacheSize:  # fmt: skip
    """
    Args:
        token_bytes: keys and values of one token in all layers of a group.
        limits: with max_model_len filled in.
        measure_step: bytes that a full-size step takes beyond weights and cache; asked on CUDA only.
        sharing: how many ranks take a cache out of a CPU's memory, and share kv_offloading_size.
        groups: of layers; None: one.

    Raises:
        ValueError: memory has no room for a single block, or for the blocks asked for by num_kv_blocks; swapping is
            asked for and swap_space holds no block, or kv_offloading_size holds none.
    """
    groups, block_bytes = groups or KVCacheGroups(block_size=cache.block_size), token_bytes * cache.block_size
    most, fewest = limits.max_num_seqs * groups.most_blocks(limits.max_model_len), len(groups.windows)
    if cache.num_kv_blocks is not None:
        num_blocks, reason = cache.num_kv_blocks, "num_kv_blocks"
        if num_blocks < fewest:
            raise wrong("num_kv_blocks", f"be at least {fewest}, one for each group of layers", num_blocks)
        free = free_memory_bytes(device)
        if num_blocks * block_bytes > free:
            raise ValueError(
                f"num_kv_blocks must fit into memory, got {num_blocks}: {num_blocks * block_bytes / GIB:.2f} GiB "
                f"where {free / GIB:.2f} GiB are free; lower it or block_size"
            )
    else:
        budget, reason = _budget(cache.gpu_memory_utilization, device, measure_step)
        budget = budget // sharing if device.type == "cpu" else budget
        num_blocks = min(budget // block_bytes, most)
        if num_blocks < fewest:
            needed = "a block" if fewest == 1 else f"{fewest} blocks, one for each group of layers,"
            raise ValueError(
                f"block_size must let {needed} fit into memory, got {cache.block_size}: a block is "
                f"{block_bytes / GIB:.3f} GiB, and the KV cache may take {max(budget, 0) / GIB:.3f} GiB ({reason})"
            )
        if num_blocks == most:
            reason = "all that max_num_seqs and max_model_len can use"
    num_swap_blocks = min(int(cache.swap_space * GIB) // block_bytes, most)
    if limits.preemption_mode == "swap" and num_swap_blocks == 0:
        raise ValueError(
            f"swap_space must hold at least one block for preemption_mode 'swap', got {cache.swap_space}: a block is "
            f"{block_bytes / GIB:.3f} GiB; raise it, or use preemption_mode 'recompute'"
        )
    num_offload_blocks = int((cache.kv_offloading_size or 0) * GIB) // sharing // block_bytes
    if cache.kv_offloading_size and not num_offload_blocks:
        raise ValueError(
            f"kv_offloading_size must hold at least one block, got {cache.kv_offloading_size}: a block is "
            f"{block_bytes / GIB:.3f} GiB on each of {sharing} ranks; raise it"
        )
    longest = limits.max_model_len
    return CacheSize(
        num_blocks, num_swap_blocks, cache.block_size, block_bytes, reason, groups, longest, num_offload_blocks
    )


def _budget(utilization: float, device: torch.device, measure_step: Callable[[], int]) -> tuple[int, str]:
    """Bytes that the cache may take now, and a text that says where the figure comes from."""
    if device.type != "cuda":
        release_freed_memory()
        free = free_memory_bytes(device)
        return int(free * CPU_SHARE), f"{CPU_SHARE:.0%} of {free / GIB:.1f} GiB free memory"
    step = measure_step()
    total = total_memory_bytes(device)
    in_use = total - free_memory_bytes(device)
    return int(total * utilization) - in_use - step, (
        f"gpu_memory_utilization {utilization} of {total / GIB:.1f} GiB, less {in_use / GIB:.1f} GiB in use and "
        f"{step / GIB:.1f} GiB for a full-size step"
    )
