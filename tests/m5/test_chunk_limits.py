"""How large a step may be, what is refused with which words, and what the engine tells while a prompt is on its way."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import LLM, AsyncLLM, EngineConfig, LLMEngine, SamplingParams
from folovllm.config import SchedulerConfig
from folovllm.engine.builder.budgets import resolve_scheduler_config
from tests.m2.async_support import go
from tests.m2.support import counting_forwards
from tests.m3.oracle import Oracle
from tests.m5.support import chunked_engine


def resolved(max_model_len: int, **kwargs: Any) -> SchedulerConfig:
    return resolve_scheduler_config(SchedulerConfig(**{"enable_chunked_prefill": True, **kwargs}), max_model_len)


# Values that are filled in


def test_the_default_budget_does_not_grow_with_the_longest_prompt():
    small, large = (resolved(length).max_num_batched_tokens for length in (64, 1_000_000))
    assert small == large
    whole = resolved(1_000_000, enable_chunked_prefill=False).max_num_batched_tokens
    assert whole == 1_000_000


@pytest.mark.parametrize(
    ("given", "threshold"),
    [
        ({}, None),  # half of what is left, and more where no other prompt can use it
        ({"max_num_partial_prefills": 4}, None),
        ({"long_prefill_token_threshold": 0}, 0),  # all that is left
        ({"long_prefill_token_threshold": 1000}, 1000),
    ],
)
def test_the_threshold_is_what_was_given(given, threshold):
    assert resolved(1000, **given).long_prefill_token_threshold == threshold


def test_the_longest_sequence_is_filled_in_and_the_callers_config_stays():
    config = SchedulerConfig(enable_chunked_prefill=True, max_num_partial_prefills=2)
    filled = resolve_scheduler_config(config, 100)
    assert (filled.max_model_len, filled.max_num_partial_prefills) == (100, 2)
    assert config == SchedulerConfig(enable_chunked_prefill=True, max_num_partial_prefills=2)


# Errors


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"long_prefill_token_threshold": 65},
            "long_prefill_token_threshold must be at most max_model_len (64), got 65; 0 turns it off",
        ),
        (
            {"enable_chunked_prefill": False, "long_prefill_token_threshold": 5},
            "long_prefill_token_threshold must be 0 without chunked prefill, got 5; set enable_chunked_prefill=True to "
            "use it",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_partial_prefills": 2},
            "max_num_partial_prefills must be 1 without chunked prefill, got 2; set enable_chunked_prefill=True to use "
            "it",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 63},
            "max_num_batched_tokens must be at least max_model_len (64), got 63: a prompt is computed whole in one "
            "step; raise it, or lower max_model_len, or set enable_chunked_prefill=True",
        ),
    ],
)
def test_what_is_refused(given, text):
    with pytest.raises(ValueError) as refused:
        resolved(64, **given)
    assert str(refused.value) == text


# Who has it on


def test_llm_and_async_llm_cut_prompts_unless_told_otherwise(text_model_folder):
    async def of_async_llm(**kwargs: Any) -> bool:
        async with AsyncLLM(str(text_model_folder), device="cpu", **kwargs) as llm:
            return llm.engine.config.scheduler_config.enable_chunked_prefill

    def of_llm(**kwargs: Any) -> bool:
        llm = LLM(str(text_model_folder), device="cpu", **kwargs)
        return llm.engine.config.scheduler_config.enable_chunked_prefill

    assert of_llm()
    assert not of_llm(enable_chunked_prefill=False)
    assert go(of_async_llm())
    assert not go(of_async_llm(enable_chunked_prefill=False))


def test_who_builds_the_configuration_means_what_it_says(text_model_folder):
    config = EngineConfig.from_kwargs(model=str(text_model_folder), device="cpu")
    assert not config.scheduler_config.enable_chunked_prefill
    engine = LLMEngine(config)
    assert not engine.config.scheduler_config.enable_chunked_prefill
    assert engine.config.scheduler_config.max_num_batched_tokens >= engine.max_model_len


# What a user sees of it


def test_a_prompt_longer_than_the_budget_is_served(oracle: Oracle) -> None:
    engine = chunked_engine(oracle.folder, max_num_batched_tokens=10)
    prompt = [i * 3 % 256 for i in range(100)]
    engine.add_request("r", prompt, SamplingParams(temperature=0, max_tokens=4))
    outputs = []
    with counting_forwards(engine) as sizes:
        while engine.has_unfinished_requests():
            outputs.append([output.outputs[0].token_ids for output in engine.step()])
    expected = oracle.greedy(prompt, 4)
    assert sizes == [10] * 10 + [1] * 3
    assert outputs == [[]] * 9 + [[expected[:i]] for i in range(1, 5)]  # nothing is said before the first token


def test_stats_count_the_tokens_of_a_prompt_as_they_come_in(oracle: Oracle) -> None:
    engine = chunked_engine(oracle.folder, max_num_batched_tokens=10, block_size=4)
    engine.add_request("r", [1] * 25, SamplingParams(n=3, max_tokens=2, ignore_eos=True))
    engine.add_request("late", [2] * 12, SamplingParams(max_tokens=2, ignore_eos=True))
    seen = []
    while engine.has_unfinished_requests():
        engine.step()
        stats = engine.stats()
        seen.append((stats.running, stats.waiting, stats.running_seqs, stats.prompt_tokens, stats.output_tokens))
    assert seen == [
        (1, 1, 1, 10, 0),
        (1, 1, 1, 20, 0),
        (2, 0, 4, 30, 3),  # 5 tokens end the first one's prompt: three siblings draw from it; and 5 of the other's
        (1, 0, 1, 37, 7),  # 3 tokens of the siblings, and 7 of the other's prompt
        (0, 0, 0, 37, 8),
    ]
    assert engine.stats().kv_blocks_used == 0


def test_nothing_is_kept_of_the_log_probabilities_of_a_prompt_that_was_aborted(oracle: Oracle) -> None:
    engine = chunked_engine(oracle.folder, max_num_batched_tokens=10)
    engine.add_request("r", [1] * 25, SamplingParams(max_tokens=1, prompt_logprobs=0))
    engine.step()
    kept = engine.runner.prompt_logprobs._rows
    assert [len(rows.ranks) for rows in kept.values()] == [10]
    engine.abort_request("r")
    engine.add_request("other", [1], SamplingParams(max_tokens=1))
    engine.step()
    assert kept == {}


def test_rows_are_handed_out_and_forgotten_with_the_prompts_last_chunk(oracle: Oracle) -> None:
    engine = chunked_engine(oracle.folder, max_num_batched_tokens=10)
    engine.add_request("r", [1] * 25, SamplingParams(max_tokens=5, prompt_logprobs=0))
    kept = []
    for _ in range(4):
        engine.step()
        kept.append([len(rows.ranks) for rows in engine.runner.prompt_logprobs._rows.values()])
    assert kept == [[10], [20], [], []]
