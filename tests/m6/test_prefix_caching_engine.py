"""What a user sees of the prefix cache: how much of a prompt was found, whose it was, and how to be rid of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from folovllm import AsyncLLM, LLMEngine, SamplingParams
from folovllm.request import Request, Sequence
from tests.m1.support import run
from tests.m2.interrupt_support import (
    Said,
    add_step_and_abort,
    assert_any_interrupt_changes_nothing,
    insist,
)
from tests.m2.support import assert_idle, counting_forwards
from tests.m3.oracle import Oracle
from tests.m3.test_interrupts import FaultError, failing
from tests.m6.support import caching_engine

GREEDY = SamplingParams(temperature=0, max_tokens=8)
PROMPT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def make(oracle: Oracle, **kwargs: Any) -> LLMEngine:
    return caching_engine(oracle.folder, **{"block_size": 4, "num_kv_blocks": 40, "max_model_len": 96, **kwargs})


def ask(engine: LLMEngine, prompt: Any, params: SamplingParams = GREEDY, name: str = "r") -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were cached."""
    engine.add_request(name, prompt, params)
    output = run(engine)[0][name]
    return output.outputs[0].token_ids, output.num_cached_tokens


def salted(prompt: list[int], salt: str | None) -> dict[str, Any]:
    return {"prompt_token_ids": prompt, "cache_salt": salt}


# What is found


def test_a_second_turn_hits_the_first_turns_question_and_answer(oracle: Oracle) -> None:
    """10 tokens asked and 8 said: keys and values of 17 are there, 4 blocks full. The next turn begins with all 18."""
    engine = make(oracle)
    answer, cached = ask(engine, PROMPT)
    assert cached == 0
    turn = [*PROMPT, *answer, 40, 41, 42]
    with counting_forwards(engine) as sizes:
        second, cached = ask(engine, turn)
    assert cached == 16
    assert sizes[0] == len(turn) - 16
    assert second == oracle.greedy(turn, 8)
    third = [*turn, *second, 50]  # 21 + 8 + 1: the cache has 28 of the first 29
    assert ask(engine, third) == (oracle.greedy(third, 8), 28)


def test_outputs_on_the_way_count_as_well_as_the_last_one(oracle: Oracle) -> None:
    engine = make(oracle)
    ask(engine, PROMPT)
    deltas = list(engine.generate_stream(PROMPT, GREEDY))
    assert {output.num_cached_tokens for output in deltas} == {8}
    assert len(deltas) == 8


def test_the_hit_rate_is_that_of_all_prompt_tokens(oracle: Oracle) -> None:
    engine = make(oracle)
    assert engine.stats().prefix_hit_rate == 0.0
    for _ in range(4):
        ask(engine, PROMPT)
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (40, 24)
    assert stats.prefix_hit_rate == 0.6
    assert stats.prompt_tokens == 16  # those that were computed
    assert stats.kv_blocks_cached == 4
    assert stats.kv_blocks_used == 0


def test_siblings_count_their_prompt_once(oracle: Oracle) -> None:
    engine = make(oracle)
    ask(engine, PROMPT)
    assert ask(engine, PROMPT, SamplingParams(n=3, top_k=1, max_tokens=8)) == (oracle.greedy(PROMPT, 8), 8)
    assert engine.stats().prefix_cache_queries == 20


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
def test_a_preempted_sequence_finds_its_own_blocks(oracle: Oracle, ahead: bool) -> None:
    """Its blocks are given back, and those that nobody needed meanwhile are still there."""
    engine = make(oracle, num_kv_blocks=12, max_model_len=48, preemption_mode="recompute", async_scheduling=ahead)
    prompts = {"a": PROMPT, "b": PROMPT[::-1]}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=22))
    came_back: list[tuple[int, int]] = []  # (tokens, how many of them were there)
    get_computed_blocks = engine.scheduler.kv.get_computed_blocks

    def watched(request: Request, seq: Sequence) -> bool:
        from_sibling = get_computed_blocks(request, seq)
        if seq.get_output_len() > 0:
            came_back.append((seq.get_len(), seq.num_computed_tokens))
        return from_sibling

    engine.scheduler.kv.get_computed_blocks = watched
    told, _ = run(engine)
    for name, prompt in prompts.items():
        assert told[name].outputs[0].token_ids == oracle.greedy(prompt, 22)
        assert told[name].num_cached_tokens == 0  # what it found when it came back is not its prompt's luck
    assert engine.stats().preemptions > 0
    length, found = came_back[-1]  # the time it was let in
    assert 0 < found < length
    assert_idle(engine)


# Reset


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
@pytest.mark.parametrize("steps", range(1, 6))
def test_a_reset_in_the_middle_changes_no_token_and_leaves_nothing(oracle: Oracle, steps: int, ahead: bool) -> None:
    engine = make(oracle, max_num_batched_tokens=5, async_scheduling=ahead)
    for name in "ab":
        engine.add_request(name, PROMPT, GREEDY)
    for _ in range(steps):
        engine.step()
    engine.reset_prefix_cache()
    engine.scheduler.check_invariants()
    running = [request.request_id for request in engine.scheduler.running]
    told, _ = run(engine)
    assert all(output.outputs[0].token_ids == oracle.greedy(PROMPT, 8) for output in told.values())
    if running == ["a", "b"]:  # nobody has begun since
        assert engine.stats().kv_blocks_cached == 0
        assert ask(engine, PROMPT)[1] == 0


def test_weights_that_change_under_a_running_request_are_not_mixed_up_later(oracle: Oracle) -> None:
    """The reason for a reset: keys and values from before it must not be read by who comes after."""
    engine = make(oracle)
    engine.add_request("r", PROMPT[:3], SamplingParams(temperature=0, max_tokens=20))
    engine.step()  # its first block gets its fourth token after the reset
    for tensor in engine.runner.kv_cache.tensors:
        tensor.add_(1.0)  # as if other weights had made them
    engine.reset_prefix_cache()
    said = run(engine)[0]["r"].outputs[0].token_ids
    turn = [*PROMPT[:3], *said]
    assert ask(engine, turn) == (oracle.greedy(turn, 8), 0)


def test_llm_forgets_when_it_is_told_to(oracle: Oracle) -> None:
    llm = oracle.make_llm(block_size=4)

    def cached() -> int:
        return llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].num_cached_tokens

    assert [cached(), cached()] == [0, 8]  # on by default
    llm.reset_prefix_cache()
    assert [cached(), cached()] == [0, 8]


def test_async_llm_forgets_when_it_is_told_to(oracle: Oracle) -> None:
    async def main() -> list[int]:
        kwargs = {"skip_tokenizer_init": True, "dtype": "float32", "device": "cpu", "block_size": 4}
        async with AsyncLLM(str(oracle.folder), **kwargs) as llm:
            llm.reset_prefix_cache()  # before anything has come
            counts = []
            for reset in (False, False, True, False):
                if reset:
                    llm.reset_prefix_cache()
                async for output in llm.generate(PROMPT, GREEDY):
                    last = output
                assert last.outputs[0].token_ids == oracle.greedy(PROMPT, 8)
                counts.append(last.num_cached_tokens)
            return counts

    assert asyncio.run(main()) == [0, 8, 0, 8]


# Off


def test_without_a_cache_nothing_is_found_or_counted(oracle: Oracle) -> None:
    engine = make(oracle, enable_prefix_caching=False)
    assert [ask(engine, salted(PROMPT, salt))[1] for salt in (None, None, "a", "a")] == [0] * 4
    engine.reset_prefix_cache()
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.kv_blocks_cached) == (0, 0, 0)
    assert stats.prefix_hit_rate == 0.0
    assert stats.prompt_tokens == 40


# Steps that do not happen


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FaultError("broken")], ids=["interrupt", "fault"])
def test_after_a_step_that_failed_nothing_is_believed_to_be_in_the_cache(oracle: Oracle, error: BaseException) -> None:
    engine = make(oracle)
    ask(engine, PROMPT)
    engine.add_request("r", [*PROMPT, 5], GREEDY)
    with failing(engine, lambda step: True, error, "model") as hit, pytest.raises(type(error)):
        engine.step()
    assert len(hit) == 1
    assert engine.stats().kv_blocks_cached == 0
    told, _ = run(engine)
    if isinstance(error, KeyboardInterrupt):
        assert told["r"].outputs[0].token_ids == oracle.greedy([*PROMPT, 5], 8)
    answer, cached = ask(engine, PROMPT, name="s")
    assert answer == oracle.greedy(PROMPT, 8)
    assert cached == (8 if told else 0)
    assert_idle(engine)


def test_an_interrupt_between_looking_and_taking_loses_no_block(oracle: Oracle, monkeypatch) -> None:
    engine = make(oracle)
    ask(engine, PROMPT)
    touch = engine.scheduler.kv.pool.touch

    def interrupted(block_ids: list[int]) -> None:
        touch(block_ids)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.scheduler.kv.pool, "touch", interrupted)
    engine.add_request("r", PROMPT, GREEDY)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert run(engine)[0]["r"].outputs[0].token_ids == oracle.greedy(PROMPT, 8)
    assert_idle(engine)


def test_an_aborted_request_leaves_what_it_has_computed(oracle: Oracle) -> None:
    engine = make(oracle, max_num_batched_tokens=5)
    engine.add_request("r", PROMPT, GREEDY)
    engine.step()
    engine.abort_request("r")
    assert_idle(engine)
    assert ask(engine, PROMPT) == (oracle.greedy(PROMPT, 8), 4)


def test_what_was_interrupted_is_found_once_it_has_been_computed_again(oracle: Oracle) -> None:
    """Its prompt's logits are wanted, so that nothing is looked up for it when it comes back."""
    engine = make(oracle, max_num_batched_tokens=5)
    engine.add_request("r", PROMPT, SamplingParams(temperature=0, max_tokens=8, prompt_logprobs=0))
    engine.step()
    with failing(engine, lambda step: True, KeyboardInterrupt(), "model"), pytest.raises(KeyboardInterrupt):
        engine.step()
    run(engine)
    assert ask(engine, PROMPT, name="s") == (oracle.greedy(PROMPT, 8), 8)


def test_an_interrupt_anywhere_loses_no_block_and_no_name(oracle: Oracle) -> None:
    engine = make(oracle, num_kv_blocks=14, max_num_batched_tokens=8, max_num_seqs=6)

    def scenario() -> Said:
        insist(engine.reset_prefix_cache)
        return add_step_and_abort(engine, engine.scheduler.check_invariants, {"other": GREEDY, "again": GREEDY})

    assert_any_interrupt_changes_nothing(scenario, lambda: assert_idle(engine), times=15)
