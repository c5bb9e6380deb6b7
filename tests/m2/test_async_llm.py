"""AsyncLLM: many users of one engine, who come and go as they like."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from transformers import AutoModelForCausalLM

from folovllm import AsyncLLM, SamplingParams
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.helpers import hf_greedy
from tests.m1.support import params, run, scripted
from tests.m2.support import assert_idle, make_engine

T = TypeVar("T")
TIMEOUT = 30.0


def go(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it; nothing that hangs does so for ever."""
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))


@asynccontextmanager
async def serving(engine) -> AsyncIterator[AsyncLLM]:
    """An AsyncLLM, shut down at the end; then the engine must be empty."""
    async with AsyncLLM.from_engine(engine) as llm:
        yield llm
    assert_idle(engine)


async def last(outputs):
    """The last output of a generate()."""
    output = None
    async for output in outputs:  # noqa: B007  the last one is wanted
        pass
    return output


async def say(llm, text, **kwargs):
    return (await last(llm.generate("x", scripted(text), **kwargs))).outputs[0].text


async def until(condition):
    while not condition():  # for ever, if need be: go() has a time limit
        await asyncio.sleep(0.001)


class Gate:
    """Holds the engine's steps, so that a test can act while one is under way."""

    def __init__(self, engine, monkeypatch):
        self.inside, self.open = threading.Event(), threading.Event()
        advance = engine.advance

        def gated():
            advance()  # computed, not yet delivered
            self.inside.set()
            assert self.open.wait(TIMEOUT)

        monkeypatch.setattr(engine, "advance", gated)


def endless(**kwargs):
    return params(**{"ignore_eos": True, **kwargs})


def test_two_hundred_streams_of_which_a_third_is_cancelled(text_model_folder):
    oracle = AutoModelForCausalLM.from_pretrained(text_model_folder).eval()
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(length)] for length in (1, 2, 5, 9, 17, 30)]
    greedy = [hf_greedy(oracle, prompt, 14) for prompt in prompts]
    engine = make_engine(text_model_folder, max_num_seqs=16)
    for i in range(4):
        engine.add_request(str(i), prompts[i], params(seed=i, max_tokens=10))
    sampled = {int(name): output.outputs[0].token_ids for name, output in run(engine)[0].items()}

    async def consume(llm, i):
        if i % 10 == 9:
            output = await last(llm.generate(prompts[i % 4], params(seed=i % 4, max_tokens=10)))
            return output.outputs[0].token_ids == sampled[i % 4]
        output = await last(llm.generate(prompts[i % 6], SamplingParams(temperature=0, max_tokens=14)))
        return output.finished and output.outputs[0].token_ids == greedy[i % 6]

    async def main():
        async with serving(engine) as llm:
            tasks = []
            for i in range(200):
                tasks.append(asyncio.create_task(consume(llm, i)))
                if rng.random() < 0.2:
                    await asyncio.sleep(0.001)
            for task in rng.sample(tasks, 66):
                task.cancel()
                await asyncio.sleep(rng.choice([0, 0, 0.002]))
            results = await asyncio.gather(*tasks, return_exceptions=True)
            # Cancelled consumers' aborts run between steps: the engine is empty soon after, not at once.
            await until(lambda: llm.stats().running == llm.stats().waiting == 0)
            assert_idle(engine)
            return results

    results = go(main())
    others = [result for result in results if not isinstance(result, asyncio.CancelledError)]
    assert others == [True] * len(others)
    assert 134 <= len(others) < 200  # some may have ended before they were to be cancelled


def test_outputs_grow_and_the_last_one_is_finished(engine):
    async def main():
        async with serving(engine) as llm:
            return [output async for output in llm.generate("x", scripted("hello"))]

    outputs = go(main())
    said = [output.outputs[0].text for output in outputs]
    assert said[-1] == "hello"
    assert all(later.startswith(earlier) for earlier, later in pairwise(said))
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert len({output.request_id for output in outputs}) == 1


def test_consumers_share_steps(engine):
    async def main():
        async with serving(engine) as llm:
            await asyncio.gather(*(say(llm, "abcdef") for _ in range(8)))
            return llm.stats()

    assert go(main()).steps == 7  # six letters and EOS; one after the other would be 56


def test_the_event_loop_stays_free_while_a_step_runs(engine, monkeypatch):
    gate = Gate(engine, monkeypatch)

    async def main():
        async with serving(engine) as llm:
            task = asyncio.create_task(say(llm, "a"))
            await until(gate.inside.is_set)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not task.done()
            gate.open.set()
            return await task

    assert go(main()) == "a"


def test_a_slow_consumer_loses_nothing(engine):
    async def main():
        async with serving(engine) as llm:
            seen = []
            async for output in llm.generate("x", scripted("a long text to say", logprobs=0)):
                seen.append(output)
                await say(llm, "a longer text, so that the other one ends meanwhile")
            return seen

    seen = go(main())
    assert len(seen) == 2
    assert seen[-1].outputs[0].text == "a long text to say"
    assert len(seen[-1].outputs[0].logprobs) == len("a long text to say") + 1


@register_logits_processor("m2_async_breaks")
class Breaks(LogitsProcessor):
    def apply(self, logits):
        raise RuntimeError("boom")


def test_errors_reach_the_one_who_asked_and_nobody_else(engine):
    async def main():
        async with serving(engine) as llm:
            return await asyncio.gather(
                say(llm, "first"),
                last(llm.generate([], params())),
                last(llm.generate("x", params(extra_args={"m2_async_breaks": True}))),
                last(llm.generate("x", params(), priority=1)),
                last(llm.generate("x", params(extra_args={"m2_asynk_breaks": True}))),
                last(llm.generate([1] * 64, params())),
                say(llm, "second"),
                return_exceptions=True,
            )

    first, *errors, second = go(main())
    assert (first, second) == ("first", "second")
    assert [type(error) for error in errors] == [ValueError, RuntimeError, ValueError, ValueError, errors[-1].__class__]
    words = ["at least one token", "boom", "policy 'fcfs'", "did you mean 'm2_async_breaks'", "max_model_len is 64"]
    for error, word in zip(errors, words, strict=True):
        assert word in str(error)


def test_a_mistake_of_the_engines_own_reaches_every_consumer(engine, monkeypatch):
    def broken():
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(engine, "advance", broken)

    async def main():
        llm = AsyncLLM.from_engine(engine)
        results = await asyncio.gather(*(say(llm, "text") for _ in range(3)), return_exceptions=True)
        with pytest.raises(RuntimeError, match="AsyncLLM has been shut down"):
            await say(llm, "late")
        await llm.shutdown()
        return results

    assert [repr(result) for result in go(main())] == ["ZeroDivisionError('a mistake')"] * 3
    monkeypatch.undo()
    assert_idle(engine)


def test_abort_ends_the_consumers_loop_without_an_error(engine):
    async def main():
        async with serving(engine) as llm:
            seen = []

            async def consume():
                async for output in llm.generate("x", endless(), request_id="r"):
                    seen.append(output)

            task = asyncio.create_task(consume())
            other = asyncio.create_task(say(llm, "text"))
            await until(lambda: seen)
            llm.abort("r")
            llm.abort("r")
            llm.abort("nobody")
            await task
            return seen, await other

    seen, other = go(main())
    assert not any(output.finished for output in seen)
    assert other == "text"


def test_leaving_the_loop_early_aborts_the_request(engine):
    async def main():
        async with serving(engine) as llm:
            async with aclosing(llm.generate("x", endless())) as outputs:
                async for output in outputs:
                    assert len(output.outputs[0].token_ids) >= 1
                    break
            await until(lambda: llm.stats().running == 0)
            return llm.stats().output_tokens

    assert go(main()) < 40


def test_a_consumer_that_is_cancelled_before_its_request_begins_leaves_nothing(engine):
    async def main():
        async with serving(engine) as llm:
            task = asyncio.create_task(say(llm, "text"))
            await asyncio.sleep(0)  # its request is on the way
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await say(llm, "next")

    assert go(main()) == "next"


def test_a_request_id_in_use_is_refused_and_free_again_afterwards(engine):
    async def main():
        async with serving(engine) as llm:
            async with aclosing(llm.generate("x", endless(), request_id="r")) as outputs:
                await anext(outputs)
                with pytest.raises(ValueError, match="^request_id 'r' belongs to an unfinished request"):
                    await say(llm, "text", request_id="r")
            return await say(llm, "again", request_id="r")

    assert go(main()) == "again"


def test_a_request_id_used_again_while_the_old_ones_step_runs_gets_nothing_of_it(engine, monkeypatch):
    gate = Gate(engine, monkeypatch)

    async def main():
        async with serving(engine) as llm:
            old = asyncio.create_task(last(llm.generate("x", scripted("", max_tokens=1), request_id="r")))
            await until(gate.inside.is_set)  # the old request has its last token, which is not yet delivered
            old.cancel()
            await asyncio.gather(old, return_exceptions=True)
            new = asyncio.create_task(say(llm, "new", request_id="r"))
            await asyncio.sleep(0)
            gate.open.set()
            return await new

    assert go(main()) == "new"


def test_a_request_id_used_again_gets_no_error_of_its_predecessor(engine, monkeypatch):
    gate = Gate(engine, monkeypatch)

    async def main():
        async with serving(engine) as llm:
            other = asyncio.create_task(say(llm, "other"))
            await until(gate.inside.is_set)  # what comes from here on waits for the end of the step
            bad = asyncio.create_task(last(llm.generate([], params(), request_id="r")))
            await asyncio.sleep(0)
            bad.cancel()
            await asyncio.gather(bad, return_exceptions=True)
            new = asyncio.create_task(say(llm, "new", request_id="r"))
            await asyncio.sleep(0)
            gate.open.set()
            return await new, await other

    assert go(main()) == ("new", "other")


def test_shutdown_ends_those_who_run_with_an_error(engine):
    async def main():
        llm = AsyncLLM.from_engine(engine)
        tasks = [asyncio.create_task(last(llm.generate("x", endless(max_tokens=60)))) for _ in range(10)]
        await until(lambda: llm.stats().running == 8 and llm.stats().waiting == 2)
        await llm.shutdown()
        assert_idle(engine)
        await llm.shutdown()  # twice is no error
        with pytest.raises(RuntimeError, match="^AsyncLLM has been shut down: make another$"):
            await say(llm, "late")
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [repr(error) for error in go(main())] == ["RuntimeError('AsyncLLM has been shut down')"] * 10


def test_shutdown_takes_no_finished_output_from_one_who_is_late(engine):
    async def main():
        llm = AsyncLLM.from_engine(engine)
        outputs = llm.generate("x", scripted("abc"))
        await anext(outputs)
        await say(llm, "longer")  # meanwhile the other one ends, and its last output waits for it
        await llm.shutdown()
        return await last(outputs)

    output = go(main())
    assert (output.finished, output.outputs[0].text) == (True, "abc")


def test_shutdown_of_one_who_never_served(engine):
    async def main():
        async with AsyncLLM.from_engine(engine):
            pass

    go(main())


def test_one_that_outlives_its_event_loop_serves_in_the_next(engine):
    llm = AsyncLLM.from_engine(engine)
    assert go(say(llm, "first")) == "first"

    async def leave_things_behind():
        tasks = [asyncio.create_task(last(llm.generate("x", endless()))) for _ in range(12)]
        await until(lambda: llm.stats().running > 0)
        return tasks  # still running when the event loop ends, perhaps in the middle of a step

    go(leave_things_behind())
    assert go(say(llm, "second")) == "second"
    go(leave_things_behind())
    go(llm.shutdown())
    assert_idle(engine)


def test_a_step_that_an_event_loop_left_running_is_waited_for_in_the_next(engine, monkeypatch):
    gate = Gate(engine, monkeypatch)
    llm = AsyncLLM.from_engine(engine)
    step_was_over = []
    add_request = engine.add_request

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
            await asyncio.sleep(0.001)
        gate.open.set()
        text = await task
        await llm.shutdown()
        return text

    go(leave_in_the_middle_of_a_step())
    monkeypatch.setattr(engine, "add_request", add)
    assert go(go_on()) == "second"
    assert step_was_over == [True]
    assert_idle(engine)


def test_priorities_reach_the_engine(text_model_folder):
    engine = make_engine(text_model_folder, max_num_seqs=1, policy="priority")

    async def main():
        ended = []
        async with serving(engine) as llm:

            async def consume(name, priority):
                await say(llm, "ab", request_id=name, priority=priority)
                ended.append(name)

            await asyncio.gather(*(consume(name, rank) for name, rank in (("c", 3), ("a", 1), ("b", 2))))
        return ended

    assert go(main()) == ["a", "b", "c"]


def test_it_makes_its_own_engine_from_the_same_keywords_as_llm(text_model_folder):
    async def main():
        async with AsyncLLM(str(text_model_folder), dtype="float32", device="cpu", max_num_seqs=3) as llm:
            text = await say(llm, "hello")
            default = await last(llm.generate("x"))
            assert len(default.outputs[0].token_ids) <= 16
        assert_idle(llm.engine)
        return text, llm.engine.scheduler.max_num_seqs

    assert go(main()) == ("hello", 3)
    with pytest.raises(TypeError, match="max_num_seqs"):
        AsyncLLM(str(text_model_folder), max_num_seq=3)


def test_stats_can_be_read_at_any_time(engine):
    async def main():
        async with serving(engine) as llm:
            tasks = [asyncio.create_task(last(llm.generate("x", endless(max_tokens=30)))) for _ in range(12)]
            end = time.monotonic() + 10
            while not all(task.done() for task in tasks) and time.monotonic() < end:
                stats = llm.stats()
                assert stats.running_seqs <= 8
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            return llm.stats()

    stats = go(main())
    assert (stats.running, stats.output_tokens, stats.tokens_per_s) == (0, 12 * 30, 0.0)
