"""Two paces for the asynchronous tests: an engine that is late everywhere, and tests that are late everywhere.

    --pace slow   each step of the engine, each hand-over between threads, each piece of an answer over HTTP
    --pace fast   each sleep of a test, each output and each piece of an answer that a test waits for

A test that waits for events is green under both and without; one that waits for a while, or looks in the hope to find
something still under way, is not. A delay is mostly short and now and then so long that the other side is done. The
draws begin anew with every test, from the seed in the header and the test's name: it meets the same ones alone.

Nothing in the package knows of this. The places are wrapped by name, and one that this tree lacks is passed over.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from importlib.util import find_spec
from typing import Any

import pytest

LONGEST = {"slow": 0.03, "fast": 0.2}  # seconds; a step of the tests' models takes 1 or 2 ms, an answer 20 to 500
_sleep, _async_sleep, _rng = time.sleep, asyncio.sleep, random.Random()
_pace: str | None = None


def delay() -> float:
    return LONGEST[_pace] * _rng.random() ** 6 if _pace else 0.0


def pytest_configure(config: pytest.Config) -> None:
    """Called when conftest.py registers this file, which it does where a pace is asked for."""
    if config.option.pace_seed is None:  # xdist's workers are told the options, and so they get the same
        config.option.pace_seed = random.randrange(10**6)
    places = pytest.MonkeyPatch()
    config.add_cleanup(places.undo)
    begin(config.option.pace, places)


def begin(pace: str, places: pytest.MonkeyPatch) -> None:
    """In this process: one that a test starts has to be told of it."""
    global _pace
    _pace = pace
    (_slow_engine if pace == "slow" else _slow_tests)(places)


def pytest_report_header(config: pytest.Config) -> str:
    return f"pace: again with --pace {_pace} --pace-seed {config.option.pace_seed}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    _rng.seed(f"{item.config.option.pace_seed} {item.nodeid}")


def _wrap(places: pytest.MonkeyPatch, module: str, path: str, wrapped: Callable[[Any], Any]) -> None:
    """Put wrapped(what is there) into the place of a class's method, or a module's function."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # not even the package around it
        found = None
    if found is not None:
        *classes, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for each in classes:
            owner = getattr(owner, each)
        places.setattr(owner, name, wrapped(getattr(owner, name)))


# --pace slow


def _slow_engine(places: pytest.MonkeyPatch) -> None:
    for module, path in (
        ("folovllm.engine.core", "EngineCore.step"),
        ("folovllm.worker.model_runner", "ModelRunner.execute_model"),  # in its middle: scheduled, not yet computed
        ("folovllm.engine.busy_loop", "BusyLoop._deliver"),  # before the outputs are handed over
        ("folovllm.engine.engine_client", "EngineClient.receive"),  # and before the event loop has them
    ):
        _wrap(places, module, path, _after_a_delay)
    _wrap(places, "concurrent.futures.thread", "ThreadPoolExecutor.submit", _late_hand_over)


def _after_a_delay(real: Callable[..., Any]) -> Callable[..., Any]:
    def late(*args: Any, **kwargs: Any) -> Any:
        _sleep(delay())
        return real(*args, **kwargs)

    return late


def _late_hand_over(real: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    """Work for one of the package's threads begins late there, and its end is told late."""

    def submit(self: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def late() -> Any:
            _sleep(delay())
            try:
                return work(*args, **kwargs)
            finally:
                _sleep(delay())

        if self._thread_name_prefix.startswith("folovllm"):
            return real(self, late)
        return real(self, work, *args, **kwargs)

    return submit


class LateAnswers:
    """An ASGI application whose answers are late, piece by piece, under --pace slow."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        async def late(message: Any) -> None:
            if _pace == "slow":
                await _async_sleep(delay())
            await send(message)

        await self.app(scope, receive, late)


# --pace fast


def _slow_tests(places: pytest.MonkeyPatch) -> None:
    for module in (time, asyncio):
        _wrap(places, module.__name__, "sleep", _sleep_longer)
    for module, path in (("folovllm.engine.async_llm", "AsyncLLM.generate"),):
        _wrap(places, module, path, _read_late)
    _wrap(places, "httpx", "Response.iter_raw", _received_late)
    _wrap(places, "httpx", "Response.aiter_raw", _received_late_too)


def _is_by_a_test() -> bool:
    """Whether the caller of the place is a test: the package sleeps, too, and reads its own streams."""
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("tests.")


def _sleep_longer(real: Callable[..., Any]) -> Callable[..., Any]:
    def sleep(seconds: float, *args: Any) -> Any:
        return real(seconds + (delay() if _is_by_a_test() else 0.0), *args)

    return sleep


def _read_late(real: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        outputs = real(*args, **kwargs)
        return late(outputs) if _is_by_a_test() else outputs

    async def late(outputs: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        async with aclosing(outputs):
            async for output in outputs:
                await _async_sleep(delay())
                yield output

    return generate


def _received_late(real: Callable[..., Iterator[bytes]]) -> Callable[..., Iterator[bytes]]:
    def late(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        for piece in real(*args, **kwargs):
            _sleep(delay())
            yield piece

    return late


def _received_late_too(real: Callable[..., AsyncGenerator[bytes, None]]) -> Callable[..., AsyncGenerator[bytes, None]]:
    async def late(*args: Any, **kwargs: Any) -> AsyncGenerator[bytes, None]:
        async with aclosing(real(*args, **kwargs)) as pieces:
            async for piece in pieces:
                await _async_sleep(delay())
                yield piece

    return late
