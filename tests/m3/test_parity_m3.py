"""Whatever is preempted, forked or swapped: the tokens are Hugging Face's, one by one, in float32."""

from __future__ import annotations

import random

import pytest
import torch

from folovllm import SamplingParams
from folovllm.outputs import RequestOutput
from tests.helpers import names, some, thinned
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle

MODES = ("recompute", "swap", "auto")


def random_prompts(count: int, seed: int = 0, longest: int = 45) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


@pytest.mark.parametrize(("mode", "block_size"), thinned(names(MODES), {"1": 1, "4": 4, "16": 16}))
def test_greedy_tokens_with_arrivals_aborts_and_preemption(oracle: Oracle, mode: str, block_size: int) -> None:
    """Room for 80 tokens; twelve requests of up to 75."""
    llm = oracle.make_llm(num_kv_blocks=80 // block_size, block_size=block_size, preemption_mode=mode, max_model_len=80)
    engine, rng = llm.engine, random.Random(block_size)
    coming = [(prompt, rng.randrange(20, 50)) for prompt in random_prompts(12, longest=26)]
    asked: dict[str, tuple[list[int], int]] = {}
    done: dict[str, RequestOutput] = {}
    aborted: set[str] = set()
    while coming or engine.has_unfinished_requests():
        if coming and rng.random() < 0.6:
            name = str(len(asked))
            asked[name] = coming.pop()
            prompt, max_tokens = asked[name]
            engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=max_tokens))
        done |= {output.request_id: output for output in engine.step() if output.finished}
        engine.scheduler.check_invariants()
        running = sorted(asked.keys() - done.keys() - aborted)
        if running and rng.random() < 0.04 and len(aborted) < 3:
            aborted.add(running[0])
            engine.abort_request(running[0])
    assert engine.stats().preemptions > 5
    assert_idle(engine)
    assert done.keys() == asked.keys() - aborted
    for name, output in done.items():
        prompt, max_tokens = asked[name]
        assert output.outputs[0].token_ids == oracle.greedy(prompt, max_tokens), f"prompt of {len(prompt)} tokens"
        assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("mode", some(MODES, 2))
def test_four_sequences_that_can_only_say_what_is_likeliest(oracle: Oracle, mode: str) -> None:
    """top_k=1 at temperature 1: forks, copies and preemption of sampled sequences, with the greedy oracle."""
    llm = oracle.make_llm(num_kv_blocks=26, block_size=4, preemption_mode=mode, max_model_len=96)
    prompts = random_prompts(5, seed=1)
    params = [SamplingParams(n=4, top_k=1, max_tokens=20 + i) for i in range(5)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, asked, output in zip(prompts, params, outputs, strict=True):
        expected = oracle.greedy(prompt, asked.max_tokens)
        assert [completion.token_ids for completion in output.outputs] == [expected] * 4
    assert llm.engine.stats().preemptions > 5
    assert_idle(llm.engine)


def seeded(**kwargs: object) -> SamplingParams:
    return SamplingParams(temperature=1.5, seed=7, **kwargs)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def undisturbed(oracle: Oracle) -> list[list[list[int]]]:
    """What seeded requests say one at a time, in a cache that is never full."""
    llm = oracle.make_llm(block_size=16)
    told = [
        llm.generate(prompt, seeded(n=4, max_tokens=24), use_tqdm=False)[0].outputs for prompt in random_prompts(5, 2)
    ]
    assert llm.engine.stats().preemptions == 0
    return [[completion.token_ids for completion in outputs] for outputs in told]


@pytest.mark.parametrize("mode", some(MODES, 2))
def test_a_seed_says_the_same_whatever_happens(oracle: Oracle, undisturbed: list, mode: str) -> None:
    llm = oracle.make_llm(num_kv_blocks=24, block_size=4, preemption_mode=mode, max_model_len=96)
    params = [seeded(n=4, max_tokens=24), *[seeded(n=4, max_tokens=24, logprobs=2, prompt_logprobs=1)] * 4]
    outputs = llm.generate(random_prompts(5, 2), params, use_tqdm=False)
    assert [[completion.token_ids for completion in output.outputs] for output in outputs] == undisturbed
    assert len({tuple(token_ids) for told in undisturbed for token_ids in told}) == 20  # nobody said another's
    assert llm.engine.stats().preemptions > 5
    for output in outputs[1:]:
        oracle.assert_logprobs(output)


def test_the_best_of_many_is_chosen_by_the_logprobs_that_hugging_face_sees(oracle: Oracle) -> None:
    llm = oracle.make_llm(num_kv_blocks=20, block_size=4, max_model_len=80)
    prompt = random_prompts(1, seed=3)[0]
    params = [
        SamplingParams(n=2, best_of=6, max_tokens=12, logprobs=0, seed=1),
        SamplingParams(n=6, max_tokens=12, logprobs=0, seed=1),
    ]
    best, every = llm.generate([prompt, prompt], params, use_tqdm=False)
    oracle.assert_logprobs(every)
    rows = [oracle.logprobs(prompt + completion.token_ids)[len(prompt) - 1 :] for completion in every.outputs]
    sums = [
        sum(float(row[i, token_id]) for i, token_id in enumerate(completion.token_ids))
        for row, completion in zip(rows, every.outputs, strict=True)
    ]
    ranked = sorted(range(6), key=lambda i: -sums[i])
    assert [completion.token_ids for completion in best.outputs] == [every.outputs[i].token_ids for i in ranked[:2]]


@pytest.mark.usefixtures("either_cpu")
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_logprobs_and_prompt_logprobs_under_preemption(oracle: Oracle, mode: str) -> None:
    llm = oracle.make_llm(num_kv_blocks=24, block_size=4, preemption_mode=mode, max_model_len=96)
    prompts = random_prompts(6, seed=4)
    outputs = llm.generate(
        prompts, SamplingParams(temperature=0, max_tokens=20, logprobs=3, prompt_logprobs=2), use_tqdm=False
    )
    assert llm.engine.stats().preemptions > 3
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].token_ids == oracle.greedy(prompt, 20)
        assert len(output.prompt_logprobs or []) == len(prompt)
        oracle.assert_logprobs(output)


def test_penalties_see_what_was_said_before_a_preemption(oracle: Oracle) -> None:
    prompts = random_prompts(5, seed=5)
    params = SamplingParams(temperature=0, max_tokens=25, repetition_penalty=1.3)
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        settings = {"max_new_tokens": 25, "repetition_penalty": 1.3, "attention_mask": torch.ones_like(ids)}
        expected.append(oracle.hf.generate(ids, do_sample=False, **settings)[0, len(prompt) :].tolist())
    for mode in ("recompute", "swap"):
        llm = oracle.make_llm(num_kv_blocks=24, block_size=4, preemption_mode=mode, max_model_len=96)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == expected
        assert llm.engine.stats().preemptions > 2
