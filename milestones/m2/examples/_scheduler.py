"""The scheduler of this tree with room for every sequence that may run. What it is made from differs by milestone."""

from __future__ import annotations

from folovllm.config import SchedulerConfig
from folovllm.core.scheduler import Scheduler


def make_scheduler(config: SchedulerConfig) -> Scheduler:
    return Scheduler(config, num_slots=config.max_num_seqs, eos_token_ids=frozenset())
