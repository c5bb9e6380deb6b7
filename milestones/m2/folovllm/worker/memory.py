"""How many blocks the KV cache gets: a share of the memory that is free once the weights are in.

A CPU's memory is shared with other programs, so the cache takes a quarter of what is free. A GPU's memory belongs to
the engine, and gpu_memory_utilization says how much of it to use. The cache never takes more than could be used.

vLLM: v1/core/kv_cache_utils.py, v1/worker/cpu_worker.py (determine_available_memory)
"""

from __future__ import annotations

import torch

from folovllm.utils.devices import total_memory_bytes
from folovllm.utils.memory import free_memory_bytes, release_freed_memory

CPU_SHARE = 0.25


def kv_cache_bytes(device: torch.device, gpu_memory_utilization: float) -> int:
    """Bytes that the KV cache may take on `device` now."""
    if device.type == "cpu":
        release_freed_memory()
        return int(free_memory_bytes(device) * CPU_SHARE)
    reserved = total_memory_bytes(device) * (1 - gpu_memory_utilization)
    return max(0, int(free_memory_bytes(device) - reserved))


def num_blocks_that_fit(budget: int, block_bytes: int, most: int) -> int:
    """Blocks of block_bytes in `budget` bytes, at most `most`.

    Raises:
        ValueError: not even one.
    """
    blocks = min(budget // block_bytes, most)
    if blocks < 1:
        raise ValueError(
            f"max_model_len needs a smaller value: a KV cache of one sequence is {block_bytes / 2**30:.2f} GiB, "
            f"and {budget / 2**30:.2f} GiB may be used for it here"
        )
    return blocks
