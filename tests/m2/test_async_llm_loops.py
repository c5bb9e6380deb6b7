"""AsyncLLM and event loops: one at a time, and the next when it has ended."""

from __future__ import annotations

import asyncio

import pytest

from folovllm import AsyncLLM
from tests.m2.async_support import Gate, Ration, endless, go, last, say, stepper, until
from tests.m2.support import assert_idle


def test_one_that_outlives_its_event_loop_serves_in_the_next(engine, monkeypatch):
    llm, ration = AsyncLLM.from_engine(engine), Ration(engine, monkeypatch, 100)
    assert go(say(llm, "first")) == "first"

    async def leave_things_behind():
        ration.give(3)
        tasks = [asyncio.create_task(last(llm.generate("x", endless()))) for _ in range(12)]
        await until(lambda: llm.stats().running > 0)
        return tasks  # still running when the event loop ends, perhaps in the middle of a step

    go(leave_things_behind())
    ration.lift()
    assert go(say(llm, "second")) == "second"
    go(leave_things_behind())
    ration.lift()
    go(llm.shutdown())
    assert_idle(engine)


def test_a_step_that_an_event_loop_left_running_is_waited_for_in_the_next(engine, monkeypatch):
    gate = Gate(engine, monkeypatch)
    llm = AsyncLLM.from_engine(engine)
    step_was_over = []
    owner = stepper(engine)[0]
    add_request = owner.add_request

    def add(*args, **kwargs):
        step_was_over.append(gate.open.is_set())
        add_request(*args, **kwargs)

    async def leave_in_the_middle_of_a_step():
        task = asyncio.create_task(say(llm, "first"))
        await until(gate.inside.is_set)
        return task

    async def go_on():
        task = asyncio.create_task(say(llm, "second"))
        for _ in range(20):
            await asyncio.sleep(0)
        gate.open.set()
        text = await task
        await llm.shutdown()
        return text

    go(leave_in_the_middle_of_a_step())
    monkeypatch.setattr(owner, "add_request", add)
    assert go(go_on()) == "second"
    assert step_was_over == [True]
    assert_idle(engine)


def test_while_an_event_loop_is_served_another_is_refused_and_nothing_kept(engine):
    """It would wait for ever: the task that steps the engine runs in the first, or does not run at all."""
    llm, first = AsyncLLM.from_engine(engine), asyncio.new_event_loop()
    refused = pytest.raises(RuntimeError, match="^AsyncLLM serves one event loop at a time, and this is another: ")
    try:
        assert first.run_until_complete(say(llm, "first")) == "first"
        for _ in range(2):  # the id is free again
            with refused:
                go(say(llm, "second", request_id="r"))

        async def shut_down() -> None:
            await llm.shutdown()

        with refused:
            go(shut_down())
        assert first.run_until_complete(say(llm, "again", request_id="r")) == "again"
        first.run_until_complete(llm.shutdown())
    finally:
        first.close()
    assert_idle(engine)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_closed_event_loop_has_let_go_with_all_who_waited_in_it(engine, monkeypatch):
    llm, first = AsyncLLM.from_engine(engine), asyncio.new_event_loop()
    ration = Ration(engine, monkeypatch, 1)
    outputs = llm.generate("x", endless(max_tokens=60), request_id="r")
    assert not first.run_until_complete(anext(outputs)).finished
    first.close()  # with the task that steps the engine in it, which nobody has cancelled
    ration.lift()

    async def second():
        text = await say(llm, "second", request_id="r")  # the id is free: nobody can ask for the other any more
        await llm.shutdown()
        return text

    assert go(second()) == "second"
    assert_idle(engine)


def test_who_outlives_the_tasks_of_the_engine_does_not_wait_for_ever(engine, monkeypatch):
    ration = Ration(engine, monkeypatch, 1)

    async def main():
        tests_own = asyncio.all_tasks()
        llm = AsyncLLM.from_engine(engine)
        task = asyncio.create_task(last(llm.generate("x", endless())))
        await until(lambda: llm.stats().running > 0)
        for other in asyncio.all_tasks() - {task, *tests_own}:
            other.cancel()  # the one that steps the engine, where there is one; then the request ends in an error
        await asyncio.sleep(0)
        ration.lift()
        await asyncio.wait([task])
        text = await say(llm, "next")  # which begins a new one
        await llm.shutdown()
        return text

    assert go(main()) == "next"
    assert_idle(engine)
