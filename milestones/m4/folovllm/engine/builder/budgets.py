"""The scheduler's budgets, filled in once the model is known.

vLLM: vllm/config/scheduler.py
"""

from __future__ import annotations

import dataclasses

from folovllm.config import SchedulerConfig

DEFAULT_BATCHED_TOKENS = 2048


def resolve_scheduler_config(config: SchedulerConfig, max_model_len: int) -> SchedulerConfig:
    """A copy with max_model_len and the budgets filled in.

    Raises:
        ValueError: max_num_batched_tokens is smaller than max_model_len; a prompt is computed in one step, so the
            longest one would wait for ever.
    """
    budget = config.max_num_batched_tokens
    if budget is None:
        budget = max(DEFAULT_BATCHED_TOKENS, max_model_len)
    elif budget < max_model_len:
        raise ValueError(
            f"max_num_batched_tokens must be at least max_model_len ({max_model_len}), got {budget}: a prompt is "
            f"computed whole in one step; raise it, or lower max_model_len"
        )
    return dataclasses.replace(
        config,
        max_model_len=max_model_len,
        max_num_batched_tokens=budget,
        max_num_seqs=min(config.max_num_seqs, budget),  # every running sequence must be able to decode in every step
    )
