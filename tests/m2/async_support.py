"""Shared by the tests of AsyncLLM: users who read to the end, and a gate that holds a step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from folovllm import AsyncLLM
from tests.m1.support import params, scripted
from tests.m2.support import assert_idle

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
