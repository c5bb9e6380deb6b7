"""Requests that come, go, break and are taken back while a step is in flight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from folovllm import LLMEngine, SamplingParams
from tests.helpers import names, thinned
from tests.m1.support import params
from tests.m2.interrupt_support import add_step_and_abort, assert_any_interrupt_changes_nothing
from tests.m2.support import assert_idle, make_engine
from tests.m3.oracle import Oracle
from tests.m4.ahead_support import Watch, assert_sound, told

PROMPTS = {"a": [1, 2, 3], "b": [9, 8, 7, 6, 5], "c": [4], "d": [11, 12]}
GREEDY = SamplingParams(temperature=0, max_tokens=12)


class FaultError(Exception):
    """Of the engine, not of one request."""


@contextmanager
def breaking(engine: LLMEngine, place: str, number: int, error: BaseException) -> Iterator[list[str]]:
    """Raise `error` the number-th time that a block is taken, a model is run or a step's tokens have come, halfway
    through: with a block that stands in no table, with a cache full of NaN, with tokens that are half known."""
    runner, pool, calls, hit = engine.runner, engine.scheduler.kv.pool, 0, []
    allocate, fill = pool.get_new_blocks, runner.batch.fill

    def count(what: str) -> None:
        nonlocal calls
        if what == place:
            calls += 1
            if calls == number:
                hit.append(what)
                for tensor in runner.kv_cache.tensors:
                    tensor.fill_(float("nan"))
                raise error

    def allocating(*args: Any, **kwargs: Any) -> list[int]:
        blocks = allocate(*args, **kwargs)
        count("schedule")
        return blocks

    def filling(*args: Any) -> None:
        fill(*args)
        count("collect")

    handle = runner.model.register_forward_pre_hook(lambda module, args: count("launch"))
    pool.get_new_blocks, runner.batch.fill = allocating, filling  # type: ignore[method-assign]
    try:
        yield hit
    finally:
        handle.remove()
        del pool.get_new_blocks, runner.batch.fill


FIRST = [("schedule", 1), ("schedule", 2)]  # nobody has been computed by then
BREAKS, NUMBERS = ("schedule", "launch", "collect"), {"3": 3, "1": 1, "2": 2, "5": 5}


@pytest.mark.parametrize(("place", "number"), thinned(names(BREAKS), NUMBERS))
def test_an_interrupt_loses_nothing(oracle: Oracle, place: str, number: int) -> None:
    engine = oracle.make_llm(async_scheduling=True, num_kv_blocks=40, block_size=4).engine
    watch = Watch(engine)
    for name, prompt in PROMPTS.items():
        engine.add_request(name, prompt, SamplingParams(n=2, top_k=1, max_tokens=12))
    done = {}
    with breaking(engine, place, number, KeyboardInterrupt()) as hit:
        with pytest.raises(KeyboardInterrupt):
            done |= watch.run()
        assert hit == [place]
        assert_sound(engine)
        done |= watch.run()
    for name, prompt in PROMPTS.items():
        assert [completion.token_ids for completion in done[name].outputs] == [oracle.greedy(prompt, 12)] * 2
    assert watch.ahead
    assert_idle(engine)


@pytest.mark.parametrize(
    ("place", "number"), [cell for cell in thinned(names(BREAKS), NUMBERS) if cell.values not in FIRST]
)
def test_a_fault_costs_those_who_took_part_and_nobody_else(oracle: Oracle, place: str, number: int) -> None:
    """Two run and two wait; the fault may come in the step of the ones and in that of the others."""
    engine = oracle.make_llm(async_scheduling=True, num_kv_blocks=40, block_size=4, max_num_seqs=2).engine
    watch = Watch(engine)
    for name, prompt in PROMPTS.items():
        engine.add_request(name, prompt, GREEDY)
    done, lost = {}, 0
    with breaking(engine, place, number, FaultError("broken")) as hit:
        while engine.has_unfinished_requests():
            try:
                done |= {output.request_id: output for output in watch.step() if output.finished}
            except FaultError:
                lost += 1
                assert_sound(engine)
        assert hit == [place]
    assert lost == 2
    assert len(done) == 2
    for name, output in done.items():
        assert output.outputs[0].token_ids == oracle.greedy(PROMPTS[name], 12)
    assert_idle(engine)


@pytest.mark.parametrize("place, number", FIRST)
def test_a_fault_while_the_first_step_is_scheduled_costs_nobody(oracle: Oracle, place: str, number: int) -> None:
    engine = oracle.make_llm(async_scheduling=True).engine
    for name in "ab":
        engine.add_request(name, PROMPTS[name], GREEDY)
    with breaking(engine, place, number, FaultError("broken")) as hit, pytest.raises(FaultError):
        engine.step()
    assert hit == [place]
    for name, output in Watch(engine).run().items():
        assert output.outputs[0].token_ids == oracle.greedy(PROMPTS[name], 12)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_abort_while_a_step_is_in_flight_gives_everything_back(oracle: Oracle, steps: int) -> None:
    engine = oracle.make_llm(async_scheduling=True, num_kv_blocks=40, block_size=4).engine
    watch = Watch(engine)
    for name, prompt in PROMPTS.items():
        engine.add_request(name, prompt, SamplingParams(n=2, top_k=1, max_tokens=12))
    for _ in range(steps):
        watch.step()
    assert watch.in_flight == min(steps, 1)
    for name in "ac":
        engine.abort_request(name)
        assert_sound(engine)
    done = watch.run()
    assert done.keys() == {"b", "d"}
    for name, output in done.items():
        assert [completion.token_ids for completion in output.outputs] == [oracle.greedy(PROMPTS[name], 12)] * 2
    assert_idle(engine)


def test_a_name_is_taken_again_while_its_last_owners_step_is_in_flight(oracle: Oracle) -> None:
    """The row that was computed too far belongs to a sequence of the same name: its token is not the newcomer's, and
    neither is its generator."""
    engine = oracle.make_llm(async_scheduling=True).engine
    watch = Watch(engine)
    asked = {"temperature": 1.5, "seed": 4, "max_tokens": 20}
    engine.add_request("r", [1, 2, 3], SamplingParams(**asked))
    expected = watch.run()["r"].outputs[0].token_ids
    for length in (3, 5, 1, 8):
        engine.add_request("r", [1, 2, 3], SamplingParams(**asked, stop_token_ids=[expected[length - 1]]))
        said = watch.run()["r"].outputs[0]
        assert said.token_ids == expected[: expected.index(expected[length - 1]) + 1]
        assert said.stop_reason == expected[length - 1]
        assert watch.in_flight == 1  # computed one step too far, and nobody has asked for it yet
    engine.add_request("r", [1, 2, 3], SamplingParams(**asked))
    for _ in range(4):
        watch.step()
    engine.abort_request("r")
    assert watch.in_flight == 1
    engine.add_request("r", [1, 2, 3], SamplingParams(**asked))
    assert watch.run()["r"].outputs[0].token_ids == expected


def test_a_failing_processor_fails_its_own_request_only(text_model_folder) -> None:
    engine = make_engine(text_model_folder, async_scheduling=True)
    watch = Watch(engine)
    alone = SamplingParams(temperature=0, max_tokens=10)
    engine.add_request("good", "hello", alone)
    watch.step()
    engine.add_request("bad", "hello", params(extra_args={"script": []}, seed=0))  # a script for nobody
    done, errors = {}, []
    while engine.has_unfinished_requests():
        try:
            done |= {output.request_id: output for output in watch.step() if output.finished}
        except ZeroDivisionError as error:
            errors.append(error)
            assert_sound(engine)
    assert len(errors) == 1
    engine.add_request("good", "hello", alone)
    assert told(done["good"]) == told(watch.run()["good"])


def test_streams_say_the_same_and_may_be_closed_in_between(text_model_folder) -> None:
    texts: dict[bool, list[str]] = {}
    for run_ahead in (False, True):
        engine = make_engine(text_model_folder, async_scheduling=run_ahead)
        streams = [engine.generate_stream("hi", params(seed=i, temperature=1.2, max_tokens=15)) for i in range(4)]
        texts[run_ahead] = [""] * 4
        for turn in range(40):
            for i, stream in enumerate(streams):
                if turn == 5 and i == 2:
                    stream.close()
                for output in [next(stream, None)]:
                    texts[run_ahead][i] += output.outputs[0].text if output is not None else ""
                assert_sound(engine)
        assert_idle(engine)
    assert texts[True] == texts[False]
    assert all(texts[True])


def test_an_interrupt_anywhere_changes_no_token_with_a_step_in_flight(oracle: Oracle) -> None:
    """Ctrl-C before any line: two steps may have drawn, whose tokens are lost, and both are drawn again alike."""
    engine = oracle.make_llm(num_kv_blocks=20, block_size=4, max_num_seqs=6, async_scheduling=True).engine
    assert_any_interrupt_changes_nothing(
        lambda: add_step_and_abort(engine, lambda: assert_sound(engine), {"other": GREEDY}),
        lambda: assert_idle(engine),
        times=15,
    )
