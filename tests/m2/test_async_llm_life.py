"""AsyncLLM: users who leave, ids that come again, shutdown."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from folovllm import AsyncLLM
from tests.m1.support import params, scripted
from tests.m2.async_support import Gate, Ration, endless, go, last, say, serving, stepper, until
from tests.m2.support import assert_idle, make_engine


def test_abort_ends_the_consumers_loop_without_an_error(engine, monkeypatch):
    ration = Ration(engine, monkeypatch, 1)

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
            ration.lift()
            await task
            return seen, await other

    seen, other = go(main())
    assert not any(output.finished for output in seen)
    assert other == "text"


def test_leaving_the_loop_early_aborts_the_request(engine, monkeypatch):
    ration = Ration(engine, monkeypatch, 1)

    async def main():
        async with serving(engine) as llm:
            async with aclosing(llm.generate("x", endless())) as outputs:
                async for output in outputs:
                    assert len(output.outputs[0].token_ids) == 1
                    break
            for _ in range(10):
                await asyncio.sleep(0)  # turns of the event loop: the abort goes to where the step thread finds it
            ration.lift()
            await until(lambda: llm.stats().running == 0)
            return llm.stats().output_tokens

    assert go(main()) <= 2  # the second step may have begun before


def test_a_consumer_that_is_cancelled_before_its_request_begins_leaves_nothing(engine, monkeypatch):
    gate = Gate(engine, monkeypatch)

    async def main():
        async with serving(engine) as llm:
            other = asyncio.create_task(say(llm, "other"))
            await until(gate.inside.is_set)  # what comes from here on waits for the end of the step
            task = asyncio.create_task(say(llm, "text"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open.set()
            return await say(llm, "next"), await other

    assert go(main()) == ("next", "other")
    assert engine.stats().prompt_tokens == 4  # two of each that began


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


def test_shutdown_ends_those_who_run_with_an_error(engine, monkeypatch):
    ration = Ration(engine, monkeypatch, 1)

    async def main():
        llm = AsyncLLM.from_engine(engine)
        tasks = [asyncio.create_task(last(llm.generate("x", endless(max_tokens=60)))) for _ in range(10)]
        await until(lambda: llm.stats().running == 8 and llm.stats().waiting == 2)
        ration.lift()
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
        first = await anext(outputs)  # the last one already, where this loop was late
        await say(llm, "longer")  # meanwhile the other one ends, and its last output waits for it
        await llm.shutdown()
        return await last(outputs) or first

    output = go(main())
    assert (output.finished, output.outputs[0].text) == (True, "abc")


def test_shutdown_of_one_who_never_served(engine):
    async def main():
        async with AsyncLLM.from_engine(engine):
            pass

    go(main())


def test_priorities_reach_the_engine(text_model_folder, monkeypatch):
    engine = make_engine(text_model_folder, max_num_seqs=1, policy="priority")
    owner, name = stepper(engine)
    advance, ended = getattr(owner, name), []

    def noting():
        before = set(engine.requests)
        made = advance()
        ended.extend(before - engine.requests.keys())
        return made

    monkeypatch.setattr(owner, name, noting)

    async def main():
        async with serving(engine) as llm:
            ranks = {"c": 3, "a": 1, "b": 2}
            await asyncio.gather(*(say(llm, "ab", request_id=name, priority=ranks[name]) for name in ranks))

    go(main())
    assert ended == ["a", "b", "c"]


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


def test_a_users_own_id_that_looks_like_ours_is_passed_over_by_asyncllm(engine, monkeypatch):
    ration = Ration(engine, monkeypatch, 1)  # nobody has ended by the time that the others come

    async def main():
        async with serving(engine) as llm:
            own = [asyncio.create_task(say(llm, name, request_id=name)) for name in ("async-0", "async-2")]
            await asyncio.sleep(0)
            ours = [asyncio.create_task(last(llm.generate("x", scripted("ours")))) for _ in range(2)]
            await asyncio.sleep(0)
            ration.lift()
            return await asyncio.gather(*own), [output.request_id for output in await asyncio.gather(*ours)]

    assert go(main()) == (["async-0", "async-2"], ["async-1", "async-3"])


@pytest.mark.parametrize("request_id", [["r"], 7, ""], ids=repr)
def test_an_id_that_is_no_name_is_refused_by_asyncllm(engine, request_id):
    async def main():
        async with serving(engine) as llm:
            with pytest.raises(ValueError, match="^request_id must "):
                await say(llm, "text", request_id=request_id)
            with pytest.raises(ValueError, match="^request_id must "):
                llm.abort(request_id)

    go(main())
