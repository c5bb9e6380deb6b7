"""The tokens with guesses are those without, whatever else is asked for: Hugging Face's where they are greedy, in
float32. Guesses come from somebody who knows the answers and is wrong now and then, so runs of every length are
accepted.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from folovllm import EngineConfig, LLMEngine, SamplingParams
from folovllm.core.draft_length import DraftLength, StepCosts
from folovllm.outputs import RequestOutput
from tests.helpers import names, some, thinned
from tests.m2.support import assert_idle
from tests.m3.beam_oracle import BeamOracle, beam_params
from tests.m3.oracle import Oracle
from tests.m4.cpu_target import NEEDS_KERNELS
from tests.m5.support import serve, token_ids
from tests.m6.support import caching_engine
from tests.m6.test_parity_m6 import BLOCK, CHUNKS, PRESSURES, Asked, asked_greedily
from tests.m8.support import Key, Prophet, guess_always, guessing_engine


def answers_of(outputs: list[RequestOutput]) -> dict[Key, list[int]]:
    return {
        (tuple(output.prompt_token_ids), completion.index): completion.token_ids
        for output in outputs
        for completion in output.outputs
    }


def greedy_answers(oracle: Oracle, asked: Asked) -> dict[Key, list[int]]:
    return {(tuple(prompt), 0): oracle.greedy(prompt, params.max_tokens) for prompt, params in asked}


def num_accepted(engine: LLMEngine) -> int:
    return sum(engine.scheduler.drafts.num_accepted_per_pos)


@pytest.mark.parametrize(
    ("chunk", "caching", "pressure", "ahead"),
    thinned(names(CHUNKS), {"off": False, "on": True}, names(PRESSURES), {"in turn": False, "ahead": True}),
)
def test_greedy_tokens_are_hugging_faces(oracle: Oracle, chunk: str, caching: bool, pressure: str, ahead: bool) -> None:
    asked = asked_greedily()
    expected = [[oracle.greedy(prompt, params.max_tokens)] for prompt, params in asked]
    engine = guessing_engine(
        oracle.folder,
        greedy_answers(oracle, asked),
        max_model_len=64,
        block_size=BLOCK,
        async_scheduling=ahead,
        enable_prefix_caching=caching,
        **PRESSURES[pressure],
        **CHUNKS[chunk],
    )
    outputs = serve(engine, asked)
    assert token_ids(outputs) == expected
    assert num_accepted(engine) > (0 if chunk == "7" else 30)  # a budget of seven tokens goes to prompts
    assert (engine.stats().preemptions > 0) == (pressure != "roomy")
    if caching:
        assert token_ids(serve(engine, asked, seed=1)) == expected  # what was cached is right


FEATURES: dict[str, dict[str, Any]] = {
    "seeded": {"temperature": 0.9, "seed": 7},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "seeded penalties": {"temperature": 1.0, "seed": 1, "repetition_penalty": 1.2, "top_p": 0.9, "min_p": 0.01},
    "logprobs": {"temperature": 0.8, "seed": 3, "top_k": 20, "logprobs": 3, "prompt_logprobs": 2},
    "processed logprobs": {"temperature": 0.8, "seed": 3, "top_k": 5, "logprobs": 2, "logprobs_mode": "processed"},
    "n": {"temperature": 1.0, "seed": 5, "n": 3},
    "best of": {"temperature": 1.0, "seed": 5, "n": 2, "best_of": 4},
    "least tokens": {"temperature": 0.0, "stop_token_ids": list(range(0, 256, 3)), "min_tokens": 6},
    "stop tokens": {"temperature": 1.0, "seed": 2, "stop_token_ids": list(range(0, 256, 9))},
    "masks": {"temperature": 0.0, "allowed_token_ids": list(range(40, 90)), "logit_bias": {50: 2.0}},
}


@pytest.mark.parametrize(("feature", "pressure"), thinned(names(FEATURES), names(["roomy", "swap"])))
def test_each_feature_is_as_without_guesses(oracle: Oracle, feature: str, pressure: str) -> None:
    params = FEATURES[feature]
    asked = [(prompt, SamplingParams(**{"max_tokens": 20, **params})) for prompt, _ in asked_greedily()]
    kwargs: dict[str, Any] = {"max_model_len": 64, "block_size": BLOCK, **PRESSURES[pressure]}
    plain = serve(caching_engine(oracle.folder, **kwargs), asked)
    everything = answers_of(plain)
    if "best_of" in params:  # the losers are not told of, and winners are numbered anew
        best_of = {**params, "n": params["best_of"]}
        asked_for_all = [(prompt, SamplingParams(max_tokens=20, **best_of)) for prompt, _ in asked]
        everything = answers_of(serve(caching_engine(oracle.folder, **kwargs), asked_for_all))
    engine = guessing_engine(oracle.folder, everything, **kwargs)
    guessed = serve(engine, asked)
    assert num_accepted(engine) > 15
    for one, other in zip(plain, guessed, strict=True):
        assert [c.token_ids for c in other.outputs] == [c.token_ids for c in one.outputs]
        assert [c.finish_reason for c in other.outputs] == [c.finish_reason for c in one.outputs]
        assert [c.stop_reason for c in other.outputs] == [c.stop_reason for c in one.outputs]
    if feature == "logprobs":
        for output in guessed:
            oracle.assert_logprobs(output)
    if params.get("logprobs"):
        for one, other in zip(plain, guessed, strict=True):
            for mine, theirs in zip(one.outputs, other.outputs, strict=True):
                assert mine.cumulative_logprob == pytest.approx(theirs.cumulative_logprob, abs=1e-3)
                assert [list(entry) for entry in mine.logprobs or ()] == [list(e) for e in theirs.logprobs or ()]


def test_beams_go_without_guesses_beside_others(beam_oracle: BeamOracle) -> None:
    asked: Asked = [([3, 9, 4, number], beam_params(2 + number % 3)) for number in range(4)]
    greedy: Asked = [([number, 5, 6], SamplingParams(temperature=0, max_tokens=16)) for number in range(4)]
    kwargs: dict[str, Any] = {"max_model_len": 64, "block_size": BLOCK, "num_kv_blocks": 60}
    plain = serve(caching_engine(beam_oracle.folder, **kwargs), greedy)
    engine = guessing_engine(beam_oracle.folder, answers_of(plain), **kwargs)
    outputs = serve(engine, [each for pair in zip(asked, greedy, strict=True) for each in pair])
    for (_, params), output in zip(asked, outputs[::2], strict=True):
        beam_oracle.check(output, params)
    assert token_ids(outputs[1::2]) == token_ids(plain)
    assert num_accepted(engine) > 0


@pytest.mark.parametrize(
    "params", some([{"temperature": 0.0}, {"temperature": 1.0, "seed": 4}]), ids=["greedy", "seeded"]
)
def test_a_stop_string_in_the_middle_of_a_run(text_model_folder: Any, params: dict[str, Any]) -> None:
    """The tokens behind it were right, and are not said."""
    allowed = [*range(97, 102), 32]
    kwargs: dict[str, Any] = {"max_model_len": 96, "skip_tokenizer_init": False}
    whole = SamplingParams(max_tokens=60, allowed_token_ids=allowed, **params)
    prompt = [97, 98, 99]
    plain_engine = caching_engine(text_model_folder, **kwargs)
    (plain,) = serve(plain_engine, [(prompt, whole)])
    text = plain.outputs[0].text
    engine = guessing_engine(text_model_folder, answers_of([plain]), k=8, **kwargs)
    for at in range(3, 20, 3):
        for least in (0, 12):
            stopped = SamplingParams(
                max_tokens=60, allowed_token_ids=allowed, stop=[text[at : at + 2]], min_tokens=least, **params
            )
            (expected,) = serve(plain_engine, [(prompt, stopped)])
            (output,) = serve(engine, [(prompt, stopped)])
            assert output.outputs[0] == expected.outputs[0]
    assert num_accepted(engine) > 30


@NEEDS_KERNELS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits_with_batch_invariance(oracle: Oracle, dtype: str) -> None:
    asked = [(p, SamplingParams(temperature=0, max_tokens=16, logprobs=2)) for p, _ in asked_greedily()]
    kwargs: dict[str, Any] = {"max_model_len": 64, "block_size": BLOCK, "batch_invariant": True, "num_kv_blocks": 200}
    kwargs["chosen_dtype"] = dtype
    plain = serve(_engine(oracle, **kwargs), asked)
    k = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    engine = guess_always(_engine(oracle, **kwargs, **k), Prophet(answers_of(plain)))
    guessed = serve(engine, asked)
    assert num_accepted(engine) > 50
    assert [output.outputs for output in guessed] == [output.outputs for output in plain]


def _engine(oracle: Oracle, *, chosen_dtype: str, **kwargs: Any) -> LLMEngine:
    given = {"enable_chunked_prefill": True, "enable_prefix_caching": True, "skip_tokenizer_init": True, **kwargs}
    return LLMEngine(EngineConfig.from_kwargs(model=str(oracle.folder), dtype=chosen_dtype, device="cpu", **given))


@pytest.mark.parametrize("kwargs", [{"quantization": "w8a8"}, {"enforce_eager": True}, {"kv_cache_dtype": "fp8"}])
def test_other_ways_to_compute(oracle: Oracle, kwargs: dict[str, Any]) -> None:
    asked = asked_greedily()
    sizes: dict[str, Any] = {"max_model_len": 64, "block_size": BLOCK, "num_kv_blocks": 200, **kwargs}
    plain = serve(caching_engine(oracle.folder, **sizes), asked)
    engine = guessing_engine(oracle.folder, answers_of(plain), **sizes)
    assert token_ids(serve(engine, asked)) == token_ids(plain)
    assert num_accepted(engine) > 50


def test_a_step_that_fails_starts_over(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while guesses are checked: nothing that was drawn stays, and the next answers are right."""
    asked = asked_greedily()
    engine = guessing_engine(oracle.folder, greedy_answers(oracle, asked), max_model_len=64, block_size=BLOCK)
    speculation = engine.runner.speculation
    assert speculation is not None
    settle, calls = engine.runner.batch.settle, []

    def interrupted(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        settle(*args)

    monkeypatch.setattr(engine.runner.batch, "settle", interrupted)
    for number, (prompt, params) in enumerate(asked):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    done: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        with contextlib.suppress(KeyboardInterrupt):
            done |= {output.request_id: output.outputs[0].token_ids for output in engine.step() if output.finished}
        engine.scheduler.check_invariants()
    assert done == {str(n): oracle.greedy(prompt, params.max_tokens) for n, (prompt, params) in enumerate(asked)}
    assert_idle(engine)


def test_the_worker_writes_nothing_into_the_scheduler_s_books(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while it draws either, though penalties count what is drawn in the same step."""
    asked = [(prompt, SamplingParams(max_tokens=12, **FEATURES["penalties"])) for prompt, _ in asked_greedily()]
    kwargs: dict[str, Any] = {"max_model_len": 64, "block_size": BLOCK, "num_kv_blocks": 200}
    plain = serve(caching_engine(oracle.folder, **kwargs), asked)
    engine = guessing_engine(oracle.folder, answers_of(plain), **kwargs)
    execute, draw = engine.runner.execute_model, engine.runner.sampling.draw
    num_output: dict[str, int] = {}

    def drawing(seqs: list[Any], *args: Any, **more: Any) -> Any:
        assert [seq.get_output_len() for seq in seqs] == [num_output[seq.seq_id] for seq in seqs]
        return draw(seqs, *args, **more)

    def executing(scheduled: Any) -> Any:
        num_output.update({seq.seq_id: seq.get_output_len() for seq in scheduled.rows})
        before = dict(scheduled.num_lookahead_tokens), list(scheduled.num_scheduled_tokens)
        step = execute(scheduled)
        assert (scheduled.num_lookahead_tokens, scheduled.num_scheduled_tokens) == before
        return step

    monkeypatch.setattr(engine.runner.sampling, "draw", drawing)
    monkeypatch.setattr(engine.runner, "execute_model", executing)
    assert token_ids(serve(engine, asked)) == token_ids(plain)
    assert num_accepted(engine) > 10


def test_nothing_is_left_of_a_storm(oracle: Oracle) -> None:
    """Five hundred requests, many of them aborted in the middle, in a cache that holds a few."""
    rng = random.Random(0)
    prompts = [prompt for prompt, _ in asked_greedily()]
    answers = {(tuple(prompt), 0): oracle.greedy(prompt, 12) for prompt in prompts}
    engine = guessing_engine(
        oracle.folder, answers, k=3, max_model_len=64, block_size=BLOCK, max_num_seqs=24, **PRESSURES["swap"]
    )
    coming = list(range(500))
    running: dict[str, list[int]] = {}
    num_right = num_aborted = 0
    while coming or engine.has_unfinished_requests():
        while coming and len(running) < 40:
            name, prompt = str(coming.pop()), rng.choice(prompts)
            running[name] = prompt
            engine.add_request(name, {"prompt_token_ids": prompt}, SamplingParams(temperature=0, max_tokens=12))
        for output in engine.step():
            if output.finished:
                assert output.outputs[0].token_ids == answers[tuple(running.pop(output.request_id)), 0]
                num_right += 1
        if running and rng.random() < 0.5:
            name = rng.choice(list(running))
            engine.abort_request(name)
            del running[name]
            num_aborted += 1
    assert num_right + num_aborted == 500
    assert num_aborted > 50
    assert engine.runner.speculation.proposer.forgotten  # the proposer heard of those who left
    assert engine.stats().preemptions > 50
    assert_idle(engine)
    engine.add_request("last", {"prompt_token_ids": [7]}, SamplingParams(max_tokens=1))
    engine.step()
    engine.step()
    batch, sampling = engine.runner.batch, engine.runner.sampling
    assert len(batch._row_of) <= 1
    assert len(sampling._rows) <= 1


def test_an_engine_hears_of_a_draft_that_says_nothing(oracle: Oracle) -> None:
    engine = guessing_engine(oracle.folder, {}, max_model_len=64, block_size=BLOCK)
    length = DraftLength(4, StepCosts(ridge=80, waiting=0.8))
    engine.scheduler.drafts.length = length
    assert length.choose(1) == 4
    serve(engine, [([3, 4, 5], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))])
    assert length.choose(1) == 0
    assert engine.stats().spec_decode.num_drafts == 0
