"""The scheduler that `folovllm bench scheduler` measures, with blocks for every sequence that may run.

In a file of its own because what a scheduler is made from changes between milestones, and what is measured does not.

vLLM: none
"""

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
