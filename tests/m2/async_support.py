"""Shared by the tests of AsyncLLM: users who read to the end, and three ways to act at a known step of the engine."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from folovllm import AsyncLLM
from tests.m1.support import params, scripted
from tests.m2.support import assert_idle

T = TypeVar("T")
TIMEOUT = 300.0


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


def stepper(engine):
    """What makes the steps of an engine that AsyncLLM serves, and the name of its method for that."""
    return (engine, "advance") if hasattr(engine, "advance") else (engine.core, "step")


class Gate:
    """Holds the engine's steps, so that a test can act while one is under way."""

    def __init__(self, engine, monkeypatch):
        self.inside, self.open = threading.Event(), threading.Event()
        owner, name = stepper(engine)
        advance = getattr(owner, name)

        def gated():
            made = advance()  # computed, not yet delivered
            self.inside.set()
            assert self.open.wait(TIMEOUT)
            return made

        monkeypatch.setattr(owner, name, gated)


class Ration:
    """Lets the engine make so many steps and no more: whoever is in it then stays there, however fast it is."""

    def __init__(self, engine, monkeypatch, steps):
        self._left, self._changed = steps, threading.Condition()
        owner, name = stepper(engine)
        advance = getattr(owner, name)

        def rationed():
            with self._changed:
                assert self._changed.wait_for(lambda: self._left > 0, TIMEOUT)
                self._left -= 1
            return advance()

        monkeypatch.setattr(owner, name, rationed)

    def give(self, steps):
        with self._changed:
            self._left = steps
            self._changed.notify()

    def lift(self):
        self.give(math.inf)


def cancel_inside_steps(engine, monkeypatch, tasks, after):
    """Cancel tasks[name] inside the step after which request `name` has had after[name] tokens: every one of them is
    cancelled, if it says that many and one more. With 0 it may still be waiting."""
    owner, method = stepper(engine)
    advance = getattr(owner, method)

    def num_tokens(request):
        return max((len(seq.data.output_token_ids) for seq in request.get_seqs()), default=0)

    async def cancel(names):
        for name in names:
            tasks[name].cancel()

    def cancelling():
        unfinished = list(engine.requests.items())
        due = [name for name, request in unfinished if name in after and num_tokens(request) >= after[name]]
        made = advance()  # computed, not yet delivered
        for name in due:
            del after[name]
        if due:
            asyncio.run_coroutine_threadsafe(cancel(due), tasks[due[0]].get_loop()).result(TIMEOUT)
        return made

    monkeypatch.setattr(owner, method, cancelling)


def endless(**kwargs):
    return params(**{"ignore_eos": True, **kwargs})
