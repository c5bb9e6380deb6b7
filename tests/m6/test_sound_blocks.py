"""A block is found again only if what it holds is finite: one request's overflow is nobody else's."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm import EngineConfig, LLMEngine, SamplingParams
from folovllm.errors import LogitsNotFiniteError
from tests.helpers import thinned
from tests.m1.overflow import BOMB, make_overflow_model
from tests.m2.support import assert_idle

PREFIX = [40, 41, 42, 43, 44, 45, 46, 47, 48, 49]
BAD, GOOD = [*PREFIX, BOMB, 50, 51, 52], [*PREFIX, 60, 61, 62, 63]
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
AHEAD = {"in turn": False, "ahead": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_overflow_model(tmp_path_factory.mktemp("overflow"), max_position_embeddings=128)


@pytest.fixture(scope="module")
def hf(folder):
    return AutoModelForCausalLM.from_pretrained(folder)


def make(folder, **kwargs) -> LLMEngine:
    values = {"num_kv_blocks": 40, "block_size": 4, "max_model_len": 64, "dtype": "float16", "device": "cpu", **kwargs}
    return LLMEngine(EngineConfig.from_kwargs(model=str(folder), enable_prefix_caching=True, **values))


def finish(engine: LLMEngine) -> tuple[dict[str, list[int]], set[str]]:
    """Step to the end, and look at every step at what can be found: {request: its answer}, and who failed."""
    answers, failed = {}, set()
    while engine.has_unfinished_requests():
        try:
            answers |= {out.request_id: out.outputs[0].token_ids for out in engine.step() if out.finished}
        except LogitsNotFiniteError as error:
            failed.add(str(error).split("'")[1])
        found = list(engine.scheduler.kv.pool._cached)
        for tensor in engine.runner.kv_cache.tensors:
            assert tensor[:, found].isfinite().all()
        engine.scheduler.check_invariants()
    assert_idle(engine)
    return answers, failed


@torch.inference_mode()
def assert_likely(hf, prompt: list[int], said: list[int]) -> None:
    """Each token is the likeliest in Hugging Face's float32 eyes, or as likely but for float16's rounding."""
    rows = hf(torch.tensor([[*prompt, *said]])).logits[0, len(prompt) - 1 : -1]
    chosen = rows.gather(1, torch.tensor(said)[:, None])[:, 0]
    assert (rows.amax(-1) - chosen < 0.1).all()


@pytest.mark.parametrize(("chunk", "ahead"), thinned({"whole": 0, "4": 4, "5": 5}, AHEAD))
def test_a_prefix_that_a_failed_request_had_computed_is_computed_anew(folder, hf, chunk, ahead):
    engine = make(folder, enable_chunked_prefill=True, long_prefill_token_threshold=chunk, async_scheduling=ahead)
    for _ in range(2):  # and the second time as the first: nobody is answered from what the first left
        engine.add_request("bad", BAD, GREEDY)
        assert finish(engine) == ({}, {"bad"})
        engine.add_request("good", GOOD, GREEDY)
        answers, failed = finish(engine)
        assert failed == set()
        assert_likely(hf, GOOD, answers["good"])
    assert engine.stats().prefix_cache_hits > 0


@pytest.mark.parametrize(("after", "ahead"), thinned({str(after): after for after in range(6)}, AHEAD))
def test_who_comes_while_a_request_fails_takes_nothing_of_it(folder, hf, after, ahead):
    """However far it has come: with chunks of four it fails in its third step."""
    engine = make(folder, enable_chunked_prefill=True, long_prefill_token_threshold=4, async_scheduling=ahead)
    engine.add_request("beside", [70, 71], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    engine.add_request("bad", BAD, SamplingParams(n=2, seed=0, max_tokens=5))
    for _ in range(after):
        try:
            engine.step()
        except LogitsNotFiniteError:
            break
    engine.add_request("good", GOOD, GREEDY)
    engine.add_request("worse", [*BAD, 3], GREEDY)
    answers, failed = finish(engine)
    assert failed >= {"worse"}
    assert set(answers) == {"beside", "good"}
    assert_likely(hf, GOOD, answers["good"])
    assert_likely(hf, [70, 71], answers["beside"])


@pytest.mark.parametrize("seed", range(4))
def test_under_a_random_load_only_those_fail_who_overflow(folder, hf, seed):
    """In small caches, with preemption, beams, siblings and aborts; every other load runs ahead."""
    rng = random.Random(seed)
    engine = make(
        folder,
        num_kv_blocks=rng.choice([16, 24, 60]),
        enable_chunked_prefill=True,
        long_prefill_token_threshold=rng.choice([0, 3, 8]),
        async_scheduling=seed % 2 == 0,
    )
    prefixes = [[rng.randrange(64, 128) for _ in range(24)] for _ in range(2)]
    prefixes += [[*prefix[:9], BOMB, *prefix[10:]] for prefix in prefixes]
    prompts = {}
    for i in range(30):
        prompt = [*rng.choice(prefixes)[: rng.randrange(24)], *(rng.randrange(64, 128) for _ in range(3))]
        kind = rng.choice([{}, {}, {"temperature": 1.0, "n": 2}, {"use_beam_search": True, "n": 2}])
        values = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logit_bias": {BOMB: -100.0}}  # nor is it said
        wanted = SamplingParams(**{**values, **kind})
        prompts[str(i)] = prompt, wanted
        engine.add_request(str(i), prompt, wanted)
        if rng.random() < 0.5:
            with contextlib.suppress(LogitsNotFiniteError):
                engine.step()
        if rng.random() < 0.1:
            engine.abort_request(str(rng.randrange(i + 1)))
    answers, failed = finish(engine)
    assert all(BOMB in prompts[name][0] for name in failed)
    for name, said in answers.items():
        prompt, wanted = prompts[name]
        assert BOMB not in prompt
        if wanted.n == 1:
            assert_likely(hf, prompt, said)
