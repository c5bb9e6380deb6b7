"""The budget of a step where none is given: what the engine is for decides."""

from __future__ import annotations

import asyncio

import pytest

from folovllm import LLM, AsyncLLM, EngineConfig, LLMEngine, SchedulerConfig
from folovllm.engine.builder.budgets import resolve_scheduler_config


def budget(mode: str, device: str, **given: int) -> int | None:
    config = SchedulerConfig(enable_chunked_prefill=True, performance_mode=mode, **given)  # type: ignore[arg-type]
    return resolve_scheduler_config(config, 4096, device).max_num_batched_tokens


@pytest.mark.parametrize(
    ("mode", "device", "tokens"),
    [
        ("interactivity", "cpu", 256),
        ("interactivity", "cuda", 8192),
        ("throughput", "cpu", 1024),
        ("throughput", "cuda", 16384),
    ],
)
def test_throughput_takes_larger_steps(mode: str, device: str, tokens: int) -> None:
    assert budget(mode, device) == tokens
    assert budget(mode, device, max_num_batched_tokens=300) == 300


def test_a_batch_is_for_throughput_and_what_is_streamed_for_interactivity(oracle) -> None:
    settings = {"model": str(oracle.folder), "skip_tokenizer_init": True, "num_kv_blocks": 8}
    assert LLM(**settings).engine.config.scheduler_config.max_num_batched_tokens == 1024
    assert (
        LLM(**settings, performance_mode="interactivity").engine.config.scheduler_config.max_num_batched_tokens == 256
    )
    config = EngineConfig.from_kwargs(**settings, enable_chunked_prefill=True)
    assert LLMEngine(config).config.scheduler_config.max_num_batched_tokens == 256
    streaming = AsyncLLM(**settings)
    assert streaming.engine.config.scheduler_config.max_num_batched_tokens == 256
    asyncio.run(streaming.shutdown())
