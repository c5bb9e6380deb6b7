"""The scheduler of this tree with room for every sequence that may run. What it is made from differs by milestone."""

from __future__ import annotations

from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler

BLOCK_SIZE = 16


def make_scheduler(config: SchedulerConfig) -> Scheduler:
    """`config`: with max_model_len filled in."""
    assert config.max_model_len is not None
    kv = KVCacheManager(config.max_num_seqs * config.max_model_len // BLOCK_SIZE, BLOCK_SIZE)
    return Scheduler(config, kv, eos_token_ids=frozenset())
