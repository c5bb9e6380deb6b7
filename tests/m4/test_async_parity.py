"""With asynchronous scheduling and without it: the same outputs, and greedy ones are Hugging Face's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from folovllm import LLMEngine, SamplingParams
from folovllm.core.run_ahead import reads_tokens
from folovllm.outputs import RequestOutput
from tests.helpers import names, thinned
from tests.m1.support import EOS, params, scripted
from tests.m2.support import assert_idle, make_engine
from tests.m3.beam_oracle import BeamOracle, beam_params
from tests.m3.oracle import Oracle
from tests.m4.ahead_support import Watch, told

CACHES: dict[str, dict[str, Any]] = {
    "roomy": {},
    "recompute": {"num_kv_blocks": 24, "block_size": 4, "preemption_mode": "recompute"},
    "swap": {"num_kv_blocks": 24, "block_size": 4, "preemption_mode": "swap"},
    "two at a time": {"max_num_seqs": 4, "max_num_batched_tokens": 128},
}


def random_prompts(count: int, seed: int = 0, longest: int = 30) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


def serve(engine: LLMEngine, asked: list[tuple[Any, SamplingParams]]) -> tuple[list[dict[str, Any]], Watch]:
    """Everything that is asked, some of it from the first step on, the rest one more a step."""
    watch, done = Watch(engine), {}
    for number, (prompt, wanted) in enumerate(asked):
        engine.add_request(str(number), prompt, wanted)
        if number >= len(asked) // 2:
            done |= {output.request_id: output for output in watch.step() if output.finished}
    done |= watch.run()
    assert_idle(engine)
    return [told(done[str(number)]) for number in range(len(asked))], watch


@pytest.mark.parametrize("cache", CACHES)
def test_greedy_tokens_are_hugging_faces_in_any_cache(oracle: Oracle, cache: str) -> None:
    asked = [(prompt, SamplingParams(temperature=0, max_tokens=10 + i)) for i, prompt in enumerate(random_prompts(9))]
    engine = oracle.make_llm(async_scheduling=True, max_model_len=96, **CACHES[cache]).engine
    outputs, watch = serve(engine, asked)
    for (prompt, wanted), output in zip(asked, outputs, strict=True):
        assert output["outputs"][0]["token_ids"] == oracle.greedy(prompt, wanted.max_tokens)
        assert output["outputs"][0]["finish_reason"] == "length"
    assert len(watch.ahead) > 5
    assert (engine.stats().preemptions > 2) == (cache in ("recompute", "swap"))


def test_the_cpu_runs_ahead_only_when_asked(oracle: Oracle) -> None:
    for settings_, ahead in (({}, False), ({"async_scheduling": False}, False), ({"async_scheduling": True}, True)):
        _, watch = serve(oracle.make_llm(**settings_).engine, [([1, 2, 3], SamplingParams(max_tokens=8))])
        assert bool(watch.ahead) == ahead


def test_a_long_batch_runs_ahead_in_every_step_but_the_first(oracle: Oracle) -> None:
    engine = oracle.make_llm(async_scheduling=True).engine
    watch = Watch(engine)
    for i in range(5):
        engine.add_request(str(i), [i, 5], SamplingParams(temperature=0, max_tokens=20))
    watch.run()
    assert len(watch.events) == 2 * 20  # no step too much: their lengths are known
    assert len(watch.ahead) == 19


SEEDED = {"temperature": 1.3, "seed": 5}
WORKLOADS: dict[str, list[SamplingParams]] = {
    "seeds": [params(**{**SEEDED, "seed": i, "max_tokens": 20}) for i in range(6)],
    "n": [params(n=3, max_tokens=9, **SEEDED) for _ in range(3)],
    "best of": [params(n=2, best_of=4, max_tokens=9, logprobs=1, **SEEDED) for _ in range(3)],
    "filters": [params(top_k=20, top_p=0.9, min_p=0.01, max_tokens=15, **SEEDED) for _ in range(4)],
    "stop tokens": [params(stop_token_ids=list(range(0, 256, 7)), **{**SEEDED, "seed": i}) for i in range(6)],
    "eos": [params(logit_bias={EOS: 4.0}, **{**SEEDED, "seed": i}) for i in range(8)],
    "min_tokens": [params(logit_bias={EOS: 9.0}, min_tokens=i, **SEEDED) for i in range(8)],
    "ignore_eos": [params(logit_bias={EOS: 4.0}, ignore_eos=True, max_tokens=12, **SEEDED) for _ in range(3)],
    "allowed": [params(allowed_token_ids=[65, 66, 67, EOS], **{**SEEDED, "seed": i}) for i in range(4)],
    "stop strings": [
        params(allowed_token_ids=[65, 66, 67], stop=["AB", "CCA"], include_stop_str_in_output=bool(i % 2), seed=i)
        for i in range(6)
    ],
    "logprobs": [params(logprobs=3, prompt_logprobs=2, max_tokens=8, **SEEDED) for _ in range(4)],
    "one token": [params(max_tokens=1, prompt_logprobs=0, **SEEDED) for _ in range(5)],
}
WAITING: dict[str, list[SamplingParams]] = {
    "penalties": [
        params(repetition_penalty=1.4, temperature=0, max_tokens=12),
        params(presence_penalty=1.5, frequency_penalty=1.0, max_tokens=12, **SEEDED),
    ],
    "bad words": [params(bad_words=["A", "BC"], allowed_token_ids=[65, 66, 67], max_tokens=20, seed=3)],
    "processors": [scripted("one", "a STOP b", "three hundred", n=3, stop="STOP")],
}


@pytest.mark.parametrize(("workload", "cache"), thinned(names([*WORKLOADS, *WAITING]), names(CACHES)))
def test_the_same_outputs_either_way(text_model_folder, workload: str, cache: str) -> None:
    wanted = (WORKLOADS | WAITING)[workload]
    asked = list(zip(["hello", "a", "what is it", "xyz" * 5] * 3, wanted, strict=False))
    outputs = {}
    for run_ahead in (False, True):
        engine = make_engine(text_model_folder, async_scheduling=run_ahead, **CACHES[cache])
        outputs[run_ahead], watch = serve(engine, asked)
        ahead = run_ahead and workload in WORKLOADS and workload != "one token"
        assert bool(watch.ahead) == ahead
    assert outputs[True] == outputs[False]


@pytest.mark.usefixtures("either_cpu")
def test_whoever_waits_for_its_tokens_makes_the_others_wait_and_changes_none_of_theirs(text_model_folder) -> None:
    alone = [("hello", wanted) for wanted in WORKLOADS["seeds"]]
    waits = params(repetition_penalty=1.4, temperature=0, max_tokens=6)
    engine = make_engine(text_model_folder, async_scheduling=True)
    mixed, watch = serve(engine, [*alone, ("hello", waits)])
    assert mixed[:-1] == serve(make_engine(text_model_folder), alone)[0]
    assert watch.ahead  # before it came, and after it had gone
    assert not any(reads_tokens(seq.sampling_params) for scheduled in watch.ahead for seq in decoded_by(scheduled))


def decoded_by(scheduled: Any) -> list[Any]:
    pairs = zip(scheduled.scheduled_seqs, scheduled.num_scheduled_tokens, strict=True)
    return [seq for seq, num_tokens in pairs if num_tokens == 1]


def test_beams_are_hugging_faces_and_do_not_run_ahead(tmp_path) -> None:
    beams = BeamOracle(tmp_path)
    engine = beams.make_llm(async_scheduling=True, num_kv_blocks=40, block_size=4).engine
    watch = Watch(engine)
    prompts = {"a": [21, 7, 7, 2, 30, 11, 1], "b": [3, 9, 8]}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, beam_params(4))
    done = watch.run()
    for output in done.values():
        beams.check(output, beam_params(4))
    assert watch.ahead == []
    assert_idle(engine)


@pytest.mark.usefixtures("either_cpu")
def test_logprobs_are_hugging_faces(oracle: Oracle) -> None:
    engine = oracle.make_llm(async_scheduling=True).engine
    watch = Watch(engine)
    for i, prompt in enumerate(random_prompts(4, seed=4)):
        engine.add_request(str(i), prompt, params(seed=i, max_tokens=12, logprobs=3, prompt_logprobs=2))
    for output in watch.run().values():
        oracle.assert_logprobs(output)
    assert len(watch.ahead) == 11


def test_many_that_end_together_lose_no_last_token_to_those_that_wait(oracle: Oracle) -> None:
    asked = [(prompt, params(seed=3, max_tokens=5)) for prompt in random_prompts(9, seed=6)]
    expected, _ = serve(oracle.make_llm().engine, asked)
    for size in (1, 2, 3):
        engine = oracle.make_llm(async_scheduling=True, max_num_seqs=size).engine
        outputs, watch = serve(engine, asked)
        assert outputs == expected
        assert engine.stats().preemptions == 0
        assert watch.ahead


@pytest.mark.exhaustive
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_random_arrivals_and_aborts_give_the_same_outputs_either_way(text_model_folder, seed: int) -> None:
    """Both engines are told the same at the same step. What is aborted may have come further in the one than in the
    other, so only who was not aborted is compared."""
    rng = random.Random(seed)
    cache = rng.choice(list(CACHES.values()))
    workloads = rng.choice([WORKLOADS, WORKLOADS, WORKLOADS | WAITING]).values()
    coming = rng.sample([wanted for workload in workloads for wanted in workload], 12)
    arrivals = {number: (rng.randrange(12), "x" * rng.randrange(1, 14), wanted) for number, wanted in enumerate(coming)}
    aborts = {number: arrivals[number][0] + rng.randrange(6) for number in arrivals if rng.random() < 0.2}
    both: list[dict[str, RequestOutput]] = []
    for run_ahead in (False, True):
        engine = make_engine(text_model_folder, async_scheduling=run_ahead, **cache)
        watch, done = Watch(engine), {}
        for step in range(18):
            for number, (when, prompt, wanted) in arrivals.items():
                if when == step:
                    engine.add_request(str(number), prompt, wanted)
            for number, when in aborts.items():
                if when == step:
                    engine.abort_request(str(number))
            done |= {output.request_id: output for output in watch.step() if output.finished}
        done |= watch.run()
        assert_idle(engine)
        both.append({name: told(output) for name, output in done.items() if int(name) not in aborts})
        assert both[-1].keys() == {str(number) for number in arrivals if number not in aborts}
    assert both[0] == both[1]
