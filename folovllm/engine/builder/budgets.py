"""The scheduler's budgets, filled in once the model is known.

vLLM: vllm/config/scheduler.py
"""

from __future__ import annotations

import dataclasses

from folovllm.config import SchedulerConfig

DEFAULT_BATCHED_TOKENS = 2048


# With chunked prefill, tokens of a step by what the engine is for (vLLM: EngineArgs.get_batch_defaults, by usage).
#
# interactivity: enough to keep the arithmetic units busy while the weights are read once, and few enough that decodes
#   do not wait long for a chunk. On the CPUs that were measured 64 are enough; for an H200 some 200 are worked out.
# throughput: no reader waits, so a gap costs nothing. On a CPU a product of 1,024 rows takes 15% less time a row
#   than one of 256 (measured on a Zen 5). On a GPU a step of so many tokens runs without a CUDA graph, and the
#   host is slower than a small model: of the 143,000 prompt tokens of a published load, 9 such steps are made instead
#   of the 75 of a budget of 2,048, which is predicted to win 2%.
#
# The price is the longest gap between two tokens of a decode, as long as a full step takes: for 16,384 tokens some
# 50 ms with 0.6e9 parameters at 400e12 operations a second.
DEFAULT_CHUNKED_TOKENS = {
    "interactivity": {"cpu": 256, "cuda": 8192},
    "throughput": {"cpu": 1024, "cuda": 16384},
}


def resolve_scheduler_config(config: SchedulerConfig, max_model_len: int, device_type: str = "cpu") -> SchedulerConfig:
    """A copy with max_model_len and the budgets filled in.

    Raises:
        ValueError: without chunked prefill, max_num_batched_tokens is smaller than max_model_len (a prompt is computed
            in one step, so the longest one would wait for ever), or a setting for chunks is given. With chunked
            prefill, the threshold is larger than any prompt.
    """
    budget, threshold = config.max_num_batched_tokens, config.long_prefill_token_threshold
    if config.enable_chunked_prefill:
        if budget is None:
            budget = DEFAULT_CHUNKED_TOKENS[config.performance_mode][device_type]
        if threshold is not None and threshold > max_model_len:
            raise ValueError(
                f"long_prefill_token_threshold must be at most max_model_len ({max_model_len}), got {threshold}; "
                f"0 turns it off"
            )
    else:
        for name, off in (("long_prefill_token_threshold", 0), ("max_num_partial_prefills", 1)):
            if getattr(config, name) not in (None, off):
                raise ValueError(
                    f"{name} must be {off} without chunked prefill, got {getattr(config, name)}; set "
                    f"enable_chunked_prefill=True to use it"
                )
        if budget is None:
            budget = max(DEFAULT_BATCHED_TOKENS, max_model_len)
        elif budget < max_model_len:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_model_len ({max_model_len}), got {budget}: a prompt is "
                f"computed whole in one step; raise it, or lower max_model_len, or set enable_chunked_prefill=True"
            )
    return dataclasses.replace(
        config,
        max_model_len=max_model_len,
        max_num_batched_tokens=budget,
        max_num_seqs=min(config.max_num_seqs, budget),  # every running sequence must be able to decode in every step
    )
