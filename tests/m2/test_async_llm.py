"""AsyncLLM: many users of one engine, each of whom gets what is his, errors too."""

from __future__ import annotations

import asyncio
import random

import pytest
from transformers import AutoModelForCausalLM

from folovllm import AsyncLLM, RequestOutputKind, SamplingParams
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.helpers import hf_greedy
from tests.m1.support import kept, params, run, scripted
from tests.m2.async_support import Gate, Ration, cancel_inside_steps, go, last, say, serving, stepper, until
from tests.m2.support import assert_idle, make_engine


def test_two_hundred_streams_of_which_a_third_is_cancelled(text_model_folder, monkeypatch):
    oracle = AutoModelForCausalLM.from_pretrained(text_model_folder).eval()
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(length)] for length in (1, 2, 5, 9, 17, 30)]
    greedy = [hf_greedy(oracle, prompt, 14) for prompt in prompts]
    engine = make_engine(text_model_folder, max_num_seqs=16)
    for i in range(4):
        engine.add_request(str(i), prompts[i], params(seed=i, max_tokens=10))
    sampled = {int(name): output.outputs[0].token_ids for name, output in run(engine)[0].items()}

    def expected(i):
        return sampled[i % 4] if i % 10 == 9 else greedy[i % 6]

    async def consume(llm, i):
        wanted = params(seed=i % 4, max_tokens=10) if i % 10 == 9 else SamplingParams(temperature=0, max_tokens=14)
        output = await last(llm.generate(prompts[i % 4 if i % 10 == 9 else i % 6], wanted, request_id=str(i)))
        return output.outputs[0].token_ids == expected(i)

    async def main():
        async with serving(engine) as llm:
            chosen = rng.sample(range(200), 66)
            tasks = {}
            cancel_inside_steps(engine, monkeypatch, tasks, {str(i): rng.randrange(len(expected(i))) for i in chosen})
            for i in range(200):
                tasks[str(i)] = asyncio.create_task(consume(llm, i))
                if rng.random() < 0.2:
                    await asyncio.sleep(0.001)
            results = await asyncio.gather(*tasks.values(), return_exceptions=True)
            # Cancelled consumers' aborts run between steps: the engine is empty soon after, not at once.
            await until(lambda: not engine.requests and not kept(engine))
            assert_idle(engine)
            return chosen, results

    chosen, results = go(main())
    cancelled = [i for i, result in enumerate(results) if isinstance(result, asyncio.CancelledError)]
    assert cancelled == sorted(chosen)
    assert [results[i] for i in range(200) if i not in chosen] == [True] * 134


@pytest.mark.parametrize(
    ("kind", "first", "whole"),
    [
        (RequestOutputKind.CUMULATIVE, "h", lambda said: said[-1]),
        (RequestOutputKind.DELTA, "h", "".join),
        (RequestOutputKind.FINAL_ONLY, "hello", "".join),
    ],
)
def test_a_stream_hands_out_what_was_asked_for(engine, monkeypatch, kind, first, whole):
    ration = Ration(engine, monkeypatch, 6 if kind is RequestOutputKind.FINAL_ONLY else 1)  # five letters and EOS

    async def main():
        async with serving(engine) as llm:
            seen = []
            async for output in llm.generate("x", scripted("hello", logprobs=0, output_kind=kind)):
                seen.append(output)
                ration.lift()
            return seen

    seen = go(main())
    said = [output.outputs[0].text for output in seen]
    assert (said[0], whole(said)) == (first, "hello")
    assert [output.finished for output in seen] == [False] * (len(seen) - 1) + [True]
    assert all(len(output.outputs[0].logprobs) == len(output.outputs[0].token_ids) for output in seen)


def test_a_kind_of_output_that_cannot_be_is_refused(engine):
    with pytest.raises(ValueError, match="^output_kind must be a RequestOutputKind, got 'delta'"):
        SamplingParams(output_kind="delta")

    async def main():
        async with serving(engine) as llm:
            await last(llm.generate("x", params(best_of=2, output_kind=RequestOutputKind.DELTA)))

    with pytest.raises(ValueError, match=r"^best_of \(2\) must equal n \(1\) when streaming"):
        go(main())


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


def test_a_slow_consumer_loses_nothing(engine, monkeypatch):
    ration = Ration(engine, monkeypatch, 1)

    async def main():
        async with serving(engine) as llm:
            seen = []
            async for output in llm.generate("x", scripted("a long text to say", logprobs=0)):
                seen.append(output)
                ration.lift()
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

    monkeypatch.setattr(*stepper(engine), broken)

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
