"""The scheduler that `folovllm bench scheduler` measures, with room for every sequence that may run.

In a file of its own because what a scheduler is made from changes between milestones, and what is measured does not.

vLLM: none
"""

from __future__ import annotations

from folovllm.config import SchedulerConfig
from folovllm.core.scheduler import Scheduler


def make_scheduler(config: SchedulerConfig) -> Scheduler:
    return Scheduler(config, num_slots=config.max_num_seqs, eos_token_ids=frozenset())
