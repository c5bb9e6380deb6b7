"""However a prompt is cut, whoever decodes beside it and whoever is preempted on the way: the tokens are Hugging
Face's, one by one, in float32.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from folovllm import SamplingParams
from folovllm.outputs import RequestOutput
from tests.helpers import names, some, thinned
from tests.m2.support import assert_idle, counting_forwards
from tests.m3.beam_oracle import BeamOracle, beam_params
from tests.m3.oracle import Oracle
from tests.m5.support import chunked_engine, serve, token_ids

# By the budget a step has for all, and by the threshold for each.
CUTS: dict[str, dict[str, Any]] = {
    "1 by budget": {"max_num_batched_tokens": 1},
    "1 by threshold": {"long_prefill_token_threshold": 1, "max_num_partial_prefills": 4},
    "7 by budget": {"max_num_batched_tokens": 7},
    "7 by threshold": {"long_prefill_token_threshold": 7, "max_num_partial_prefills": 2},
    "16 by budget": {"max_num_batched_tokens": 16},
    "16 by threshold": {"long_prefill_token_threshold": 16, "max_num_partial_prefills": 3},
    "64 by budget": {"max_num_batched_tokens": 64},
    "64 by threshold": {"long_prefill_token_threshold": 64, "max_num_batched_tokens": 96},
    "whole": {"enable_chunked_prefill": False},
}
SIZES = ("1 by threshold", "7 by budget", "16 by threshold", "64 by budget", "whole")
# Room for 80 tokens, where a request needs up to 78; and for all.
CACHES: dict[str, dict[str, Any]] = {
    "recompute": {"num_kv_blocks": 20, "block_size": 4, "preemption_mode": "recompute"},
    "swap": {"num_kv_blocks": 20, "block_size": 4, "preemption_mode": "swap"},
    "roomy": {"block_size": 16},
}


def random_prompts(count: int, seed: int = 0, longest: int = 80) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


@pytest.mark.parametrize(
    ("cut", "cache", "ahead"), thinned(names(CUTS), names(CACHES), {"in turn": False, "ahead": True})
)
def test_greedy_tokens_are_hugging_faces(oracle: Oracle, cut: str, cache: str, ahead: bool) -> None:
    lengths, max_tokens = (5, 60, 9, 44, 1), (36, 18, 20, 8, 12)
    prompts = [[(i + 1) * j * 37 % 251 for j in range(length)] for i, length in enumerate(lengths)]
    asked = [
        (prompt, SamplingParams(temperature=0, max_tokens=most, logprobs=0, prompt_logprobs=i % 2))
        for i, (prompt, most) in enumerate(zip(prompts, max_tokens, strict=True))
    ]
    engine = chunked_engine(oracle.folder, max_model_len=80, async_scheduling=ahead, **CACHES[cache], **CUTS[cut])
    with counting_forwards(engine) as sizes:
        outputs = serve(engine, asked)
    assert max(sizes) <= engine.config.scheduler_config.max_num_batched_tokens
    assert token_ids(outputs) == [[oracle.greedy(prompt, params.max_tokens)] for prompt, params in asked]
    for output in outputs:
        assert len(output.prompt_logprobs or []) == len(output.prompt_token_ids)
        oracle.assert_logprobs(output)
    # With a budget of one token one sequence runs at a time, and nobody is in its way.
    assert (engine.stats().preemptions > 0) == (cache != "roomy" and cut != "1 by budget")


@pytest.mark.parametrize(("cut", "cache"), thinned(names(SIZES), names(CACHES)))
def test_siblings_that_can_only_say_what_is_likeliest(oracle: Oracle, cut: str, cache: str) -> None:
    asked = [
        (prompt, SamplingParams(n=3, top_k=1, max_tokens=8 + i)) for i, prompt in enumerate(random_prompts(4, 1, 60))
    ]
    engine = chunked_engine(oracle.folder, max_model_len=80, **CACHES[cache], **CUTS[cut])
    outputs = serve(engine, asked)
    assert token_ids(outputs) == [[oracle.greedy(prompt, params.max_tokens)] * 3 for prompt, params in asked]


def seeded(**kwargs: Any) -> SamplingParams:
    return SamplingParams(temperature=1.5, seed=7, max_tokens=10, **kwargs)


@pytest.fixture(scope="module")
def undisturbed(oracle: Oracle) -> list[list[list[int]]]:
    """What seeded requests say one at a time, their prompts whole, in a cache that is never full."""
    engine = chunked_engine(oracle.folder, enable_chunked_prefill=False)
    return token_ids([serve(engine, [(prompt, seeded(n=3))])[0] for prompt in random_prompts(4, 2, 60)])


@pytest.mark.parametrize(
    ("cut", "cache", "ahead"), thinned(names(SIZES), names(CACHES), {"in turn": False, "ahead": True})
)
def test_a_seed_says_the_same_however_its_prompt_is_cut(
    oracle: Oracle, undisturbed: list, cut: str, cache: str, ahead: bool
) -> None:
    engine = chunked_engine(oracle.folder, max_model_len=80, async_scheduling=ahead, **CACHES[cache], **CUTS[cut])
    outputs = serve(engine, [(prompt, seeded(n=3, prompt_logprobs=1)) for prompt in random_prompts(4, 2, 60)])
    assert token_ids(outputs) == undisturbed
    assert len({tuple(said) for output in undisturbed for said in output}) == 12  # nobody said another's
    for output in outputs:
        assert [row is None for row in output.prompt_logprobs or []] == [True] + [False] * (
            len(output.prompt_token_ids) - 1
        )


@pytest.mark.parametrize(("cut", "mode"), thinned(names([*SIZES, "7 by threshold"]), names(["recompute", "swap"])))
def test_beams_are_hugging_faces(beam_oracle: BeamOracle, cut: str, mode: str) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(24, 30) for _ in range(length)] for length in (20, 3, 33)]
    asked = [(prompt, beam_params(3, max_tokens=8)) for prompt in prompts]
    caches: tuple[dict[str, Any], ...] = ({}, {"num_kv_blocks": 21, "block_size": 4, "preemption_mode": mode})
    for cache in caches:
        engine = chunked_engine(beam_oracle.folder, max_model_len=64, **cache, **CUTS[cut])
        for output, (_, params) in zip(serve(engine, asked), asked, strict=True):
            beam_oracle.check(output, params)


# Log-probabilities of the prompt's own tokens


@pytest.mark.usefixtures("either_cpu")
@pytest.mark.parametrize("budget", some([3, 63, 65, 1, 10, 64, 80], 3))
def test_prompt_logprobs_across_chunks(oracle: Oracle, budget: int) -> None:
    """No position is lost or counted twice where two chunks meet, and 64 positions are worked out at once."""
    engine = chunked_engine(oracle.folder, max_model_len=96, max_num_batched_tokens=budget)
    prompt = [i * 37 % 256 for i in range(80)]
    (output,) = serve(engine, [(prompt, SamplingParams(temperature=0, max_tokens=3, logprobs=1, prompt_logprobs=2))])
    assert len(output.prompt_logprobs or []) == 80
    oracle.assert_logprobs(output)


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
def test_a_request_that_takes_the_name_of_one_that_was_aborted_on_its_way(oracle: Oracle, ahead: bool) -> None:
    """Nothing of the first one's rows is left for it, though a chunk of it may still be computed."""
    engine = chunked_engine(oracle.folder, max_model_len=96, max_num_batched_tokens=8, async_scheduling=ahead)
    wanted = SamplingParams(temperature=0, max_tokens=2, logprobs=0, prompt_logprobs=1)
    engine.add_request("r", [i * 7 % 256 for i in range(30)], wanted)
    engine.step()
    engine.step()
    engine.abort_request("r")
    engine.add_request("r", [i * 13 % 256 for i in range(30)], wanted)
    done: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        done += [output for output in engine.step() if output.finished]
    assert [len(output.prompt_logprobs or []) for output in done] == [30]
    oracle.assert_logprobs(done[0])
    assert_idle(engine)


@pytest.mark.parametrize(
    ("chunk", "ahead"), thinned({str(chunk): chunk for chunk in range(4)}, {"in turn": False, "ahead": True})
)
def test_a_prompt_that_is_interrupted_on_its_way_begins_anew(oracle: Oracle, chunk: int, ahead: bool) -> None:
    """Ctrl-C in the middle of a forward: what the cache holds then is not known, nor how far the rows have come."""
    engine = chunked_engine(oracle.folder, max_model_len=80, max_num_batched_tokens=8, async_scheduling=ahead)
    prompt = [i * 5 % 251 for i in range(30)]
    engine.add_request("r", prompt, SamplingParams(n=2, top_k=1, max_tokens=4, logprobs=0, prompt_logprobs=1))
    forwards = 0

    def interrupt(*_: Any) -> None:
        nonlocal forwards
        forwards += 1
        if forwards == chunk + 1:
            raise KeyboardInterrupt

    engine.runner.model.register_forward_hook(interrupt)
    done: list[RequestOutput] = []
    interrupts = 0
    while engine.has_unfinished_requests():
        try:
            done += [output for output in engine.step() if output.finished]
        except KeyboardInterrupt:
            interrupts += 1
        engine.scheduler.check_invariants()
    assert interrupts == 1
    assert token_ids(done) == [[oracle.greedy(prompt, 4)] * 2]
    assert len(done[0].prompt_logprobs or []) == 30
    oracle.assert_logprobs(done[0])
    assert_idle(engine)
