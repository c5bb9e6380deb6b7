"""Chunks of any size, blocks found again or not, preemption of either kind, steps in turn or ahead: the tokens are
Hugging Face's, one by one, in float32.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from folovllm import SamplingParams
from tests.helpers import names, thinned
from tests.m3.beam_oracle import BeamOracle, beam_params
from tests.m3.oracle import Oracle
from tests.m5.support import serve, token_ids
from tests.m6.support import caching_engine

BLOCK = 4
CHUNKS: dict[str, dict[str, Any]] = {
    "1": {"long_prefill_token_threshold": 1, "max_num_partial_prefills": 4},
    "7": {"max_num_batched_tokens": 7},
    "16": {"long_prefill_token_threshold": 16, "max_num_partial_prefills": 2},
    "64": {"max_num_batched_tokens": 64},
    "whole": {"enable_chunked_prefill": False},
}
# Room for 64 tokens, as one request may need; and for all of them.
PRESSURES: dict[str, dict[str, Any]] = {
    "recompute": {"num_kv_blocks": 16, "preemption_mode": "recompute"},
    "swap": {"num_kv_blocks": 16, "preemption_mode": "swap"},
    "roomy": {"num_kv_blocks": 200},
}
Asked = list[tuple[list[int], SamplingParams]]


def prompts_that_begin_alike(seed: int = 0) -> list[list[int]]:
    """Of 1 to 46 tokens: two families, one of them with the other's beginning; one prompt twice; one a block's end."""
    rng = random.Random(seed)
    long = [rng.randrange(256) for _ in range(30)]
    short = [*long[:10], *(rng.randrange(256) for _ in range(4))]
    prompts = [[*base, *(rng.randrange(256) for _ in range(rng.randrange(1, 16)))] for base in [long, short] * 2]
    return [*prompts, list(prompts[0]), long[: 5 * BLOCK], [7]]


def asked_greedily() -> Asked:
    return [
        (prompt, SamplingParams(temperature=0, max_tokens=12 + 2 * (i % 4)))
        for i, prompt in enumerate(prompts_that_begin_alike())
    ]


def reusable(prompt: list[int]) -> int:
    """Tokens of a prompt that has been computed before: all its full blocks, but for that of its last token."""
    return (len(prompt) - 1) // BLOCK * BLOCK


@pytest.mark.parametrize(
    ("chunk", "caching", "pressure", "ahead"),
    thinned(names(CHUNKS), {"off": False, "on and warm": True}, names(PRESSURES), {"in turn": False, "ahead": True}),
)
def test_greedy_tokens_are_hugging_faces(oracle: Oracle, chunk: str, caching: bool, pressure: str, ahead: bool) -> None:
    """With a cache the same requests come a second time, to what the first left behind."""
    asked = asked_greedily()
    expected = [[oracle.greedy(prompt, params.max_tokens)] for prompt, params in asked]
    engine = caching_engine(
        oracle.folder,
        max_model_len=64,
        block_size=BLOCK,
        async_scheduling=ahead,
        enable_prefix_caching=caching,
        **PRESSURES[pressure],
        **CHUNKS[chunk],
    )
    outputs = serve(engine, asked)
    assert token_ids(outputs) == expected
    found = sum(output.num_cached_tokens for output in outputs)
    assert (found > 0) == caching
    assert (engine.stats().preemptions > 0) == (pressure != "roomy")
    if caching:
        again = serve(engine, asked, seed=1)
        assert token_ids(again) == expected
        counts = [output.num_cached_tokens for output in again]
        if pressure == "roomy":
            assert counts == [reusable(prompt) for prompt, _ in asked]
        stats = engine.stats()
        assert stats.prefix_cache_hits == found + sum(counts)
        assert stats.prefix_cache_queries == 2 * sum(len(prompt) for prompt, _ in asked)


@pytest.mark.parametrize(("pressure", "chunk"), thinned(names(PRESSURES), names(["7", "whole"])))
def test_siblings_that_can_only_say_what_is_likeliest(oracle: Oracle, chunk: str, pressure: str) -> None:
    """top_k=1 at temperature 1: forks, copies and preemption over blocks that are found, cold and warm."""
    asked = [
        (prompt, SamplingParams(n=3, top_k=1, max_tokens=8 + i)) for i, prompt in enumerate(prompts_that_begin_alike())
    ]
    kwargs = {**PRESSURES[pressure], **CHUNKS[chunk]}
    engine = caching_engine(oracle.folder, max_model_len=64, block_size=BLOCK, **kwargs)
    for seed in range(2):
        outputs = serve(engine, asked, seed)
        assert token_ids(outputs) == [[oracle.greedy(prompt, params.max_tokens)] * 3 for prompt, params in asked]
    assert engine.stats().prefix_cache_hits > 0
    assert (engine.stats().preemptions > 0) == (pressure != "roomy")


@pytest.mark.parametrize(("pressure", "chunk"), thinned(names(PRESSURES), names(["7", "whole"])))
def test_beams_find_what_hugging_face_finds_cold_and_warm(beam_oracle: BeamOracle, chunk: str, pressure: str) -> None:
    rng = random.Random(3)
    prefix = [rng.randrange(32) for _ in range(9)]
    asked = [([*prefix, *(rng.randrange(32) for _ in range(i))], beam_params(2 + i % 3)) for i in range(1, 6)]
    kwargs = {**PRESSURES[pressure], **CHUNKS[chunk]}
    kwargs["num_kv_blocks"] += 4  # the widest search must fit
    engine = caching_engine(beam_oracle.folder, max_model_len=64, block_size=BLOCK, **kwargs)
    for seed in range(2):
        for (_, params), output in zip(asked, serve(engine, asked, seed), strict=True):
            beam_oracle.check(output, params)
    assert engine.stats().prefix_cache_hits >= 5 * 8


@pytest.mark.usefixtures("either_cpu")
@pytest.mark.parametrize(("chunk", "ahead"), thinned(names(["7", "whole"]), {"in turn": False, "ahead": True}))
def test_a_seed_says_the_same_cold_and_warm_and_without_a_cache(oracle: Oracle, chunk: str, ahead: bool) -> None:
    params = SamplingParams(n=2, temperature=1.3, seed=11, max_tokens=12)
    asked = [(prompt, params) for prompt in prompts_that_begin_alike(seed=2)]
    kwargs = {"max_model_len": 64, "block_size": BLOCK, "async_scheduling": ahead, **CHUNKS[chunk]}
    without = token_ids(serve(caching_engine(oracle.folder, enable_prefix_caching=False, **kwargs), asked))
    engine = caching_engine(oracle.folder, **kwargs)
    cold = serve(engine, asked)
    warm = serve(engine, asked, seed=1)
    assert token_ids(cold) == token_ids(warm) == without
    assert sum(output.num_cached_tokens for output in warm) == sum(reusable(prompt) for prompt, _ in asked)


@pytest.mark.parametrize(("pressure", "chunk"), thinned(names(PRESSURES), names(["7", "whole"])))
def test_log_probabilities_of_prompt_and_answer_with_a_warm_cache(oracle: Oracle, chunk: str, pressure: str) -> None:
    """Who asks for the prompt's has all of it computed, although it is there."""
    asked = [
        (prompt, SamplingParams(temperature=0, max_tokens=8, logprobs=1, prompt_logprobs=(None, 1)[i % 2]))
        for i, prompt in enumerate(prompts_that_begin_alike())
    ]
    kwargs = {**PRESSURES[pressure], **CHUNKS[chunk]}
    engine = caching_engine(oracle.folder, max_model_len=64, block_size=BLOCK, **kwargs)
    for seed in range(2):
        for (prompt, params), output in zip(asked, serve(engine, asked, seed), strict=True):
            assert output.outputs[0].token_ids == oracle.greedy(prompt, 8)
            oracle.assert_logprobs(output)
            if params.prompt_logprobs is not None:
                assert output.num_cached_tokens == 0
                assert len(output.prompt_logprobs or []) == len(prompt)
    assert engine.stats().prefix_cache_hits > 0
