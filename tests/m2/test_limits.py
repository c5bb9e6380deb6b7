"""What the engine refuses, who goes first, and what it tells about itself."""

from __future__ import annotations

import math
import sys
import threading

import pytest

from folovllm import LLM, EngineConfig, LLMEngine, SamplingParams
from folovllm.engine.stats import TokenCounter
from tests.m1.support import params, run, scripted
from tests.m2.support import assert_idle, make_engine

# Limits


def test_a_token_budget_below_the_longest_prompt_is_refused(text_model_folder):
    text = (
        r"^max_num_batched_tokens must be at least max_model_len \(64\), got 63: a prompt is computed whole in one "
        r"step; raise it, or lower max_model_len"
    )
    with pytest.raises(ValueError, match=text):
        make_engine(text_model_folder, max_num_batched_tokens=63)
    assert make_engine(text_model_folder, max_num_batched_tokens=64).max_model_len == 64
    assert make_engine(text_model_folder, max_num_batched_tokens=63, max_model_len=63).max_model_len == 63


def test_the_engine_fills_in_its_own_copy_of_the_config(text_model_folder):
    config = EngineConfig.from_kwargs(model=str(text_model_folder), dtype="float32", device="cpu")
    engine = LLMEngine(config)
    assert engine.config.scheduler_config.max_num_batched_tokens == 2048
    assert config.scheduler_config.max_num_batched_tokens is None


# Priorities


def test_priority_under_fcfs_is_refused_and_leaves_nothing(engine):
    text = r"^priority must be 0 under policy 'fcfs', got 3; set policy='priority' to use it$"
    with pytest.raises(ValueError, match=text):
        engine.add_request("r", "x", params(), priority=3)
    assert_idle(engine)


@pytest.mark.parametrize("priority", ["high", 1.5, None, True])
def test_a_priority_that_is_no_integer_is_refused(engine, priority):
    with pytest.raises(ValueError, match="^priority must be an integer"):
        engine.add_request("r", "x", params(), priority=priority)
    assert_idle(engine)


def test_generate_takes_one_priority_for_each_prompt(text_model_folder):
    llm = LLM(str(text_model_folder), dtype="float32", device="cpu", max_num_seqs=1, policy="priority")
    outputs = llm.generate(["a", "b", "c"], scripted("ab"), priority=[5, 9, 1], use_tqdm=False)
    assert [out.prompt for out in outputs] == ["a", "b", "c"]  # in the order of the prompts all the same
    ended = sorted((out.metrics.finished_time, out.prompt) for out in outputs)
    assert [prompt for _, prompt in ended] == ["c", "a", "b"]


def test_generate_refuses_priorities_of_another_length_or_policy(text_model_folder):
    llm = LLM(str(text_model_folder), dtype="float32", device="cpu", max_num_seqs=1)
    with pytest.raises(ValueError, match="^priority must be as many as the prompts, got 1 for 2$"):
        llm.generate(["a", "b"], params(), priority=[1])
    with pytest.raises(ValueError, match="^priority must be 0 under policy 'fcfs'"):
        llm.generate(["a", "b"], params(), priority=[0, 1])
    assert_idle(llm.engine)


# Statistics


def test_stats_count_requests_sequences_and_tokens(text_model_folder, monkeypatch):
    monkeypatch.setattr("folovllm.engine.stats.WINDOW_SECONDS", math.inf)  # no step is too long ago
    engine = make_engine(text_model_folder, max_num_seqs=2)
    zero = engine.stats()
    assert (zero.running, zero.waiting, zero.steps, zero.tokens_per_s) == (0, 0, 0, 0.0)
    for i in range(4):
        engine.add_request(str(i), [1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))
    assert (engine.stats().running, engine.stats().waiting) == (0, 4)
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.running_seqs) == (2, 2, 2)
    assert (stats.steps, stats.prompt_tokens, stats.output_tokens) == (1, 6, 2)
    engine.step()
    stats = engine.stats()
    assert (stats.steps, stats.prompt_tokens, stats.output_tokens) == (2, 6, 4)
    assert stats.tokens_per_s > 0
    engine.abort_request("0")
    assert engine.stats().running == 1
    run(engine)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.running_seqs, stats.kv_tokens_used) == (0, 0, 0, 0)
    assert (stats.prompt_tokens, stats.output_tokens) == (12, 3 * 3 + 2)
    assert stats.tokens_per_s == 0.0


def test_the_token_rate_is_that_of_the_last_seconds(monkeypatch):
    now = 100.0
    monkeypatch.setattr("folovllm.engine.stats.time.perf_counter", lambda: now)
    counter = TokenCounter()
    counter.record(began=100.0, prompt_tokens=5, output_tokens=10)
    now = 102.0
    counter.record(began=101.0, prompt_tokens=0, output_tokens=10)
    assert counter.tokens_per_s == pytest.approx(20 / 2)
    now = 105.5
    assert counter.tokens_per_s == pytest.approx(10 / 4.5)  # the step of second 100 is too long ago
    now = 200.0
    assert counter.tokens_per_s == 0.0
    assert (counter.steps, counter.prompt_tokens, counter.output_tokens) == (2, 5, 20)


def test_the_rate_can_be_read_while_another_thread_records_a_step():
    counter = TokenCounter()
    for _ in range(200):
        counter.record(began=sys.float_info.max, prompt_tokens=0, output_tokens=1)  # never too old
    stop = threading.Event()

    def record():
        while not stop.is_set():
            counter.record(began=sys.float_info.max, prompt_tokens=0, output_tokens=1)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=record)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(20):
            assert counter.tokens_per_s > 0
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
