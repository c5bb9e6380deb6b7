"""AsyncLLM: the same engine for many users at once, each of whom awaits the outputs of one request.

The engine's loop has a thread (busy_loop.py), so that the event loop stays free to take new requests and to hand out
what has come:

    consumers      generate("a")      generate("b")     cancel a
                        │                  │               │
    loop's thread  ── add a ── step ── add b ── step ── abort a ── step ──

All that is called here belongs to one event loop. When that has been closed, the next one to call takes its place.
Until then a call from another is refused.

vLLM: v1/engine/async_llm.py
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.busy_loop import BusyLoop
from folovllm.engine.engine_client import Done, EngineClient
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequestType
from folovllm.engine.pacing import Pacing
from folovllm.engine.snapshots import EngineSnapshot, snapshot_of
from folovllm.engine.stats import EngineStats
from folovllm.vllm_names import check_keywords


class AsyncLLM(EngineClient):
    """An engine for asyncio.

        async with AsyncLLM() as llm:
            async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=32)):
                print(output.outputs[0].text)

    Args: as for LLM. Raises: as LLM does.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        observers: Sequence[Callable[[Any], object]] = (),
        **kwargs: Any,
    ) -> None:
        engine = LLMEngine(config_for_llm(model, **kwargs))
        for attach in observers:
            attach(engine)
        self._start(engine)

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> AsyncLLM:
        """Serve an engine that exists. Until shutdown() no other code may use it."""
        self = cls.__new__(cls)
        self._start(engine)
        return self

    @classmethod
    def from_engine_args(cls, args: Any) -> AsyncLLM:
        return cls.from_engine(LLMEngine.from_engine_args(args))

    def _start(self, engine: LLMEngine) -> None:
        super().__init__(engine)
        self._busy = BusyLoop(engine.core, engine.input_processor, self._deliver)
        self._loop: asyncio.AbstractEventLoop | None = None  # that is served
        self._unsent: list[tuple[EngineCoreRequestType, tuple[Any, ...]]] = []

    def abort(self, request_id: str) -> Done:
        self._check_event_loop()
        return super().abort(request_id)

    def reset_prefix_cache(self, **vllms: Any) -> Done:
        """As reset_prefix_caches(), before the next step; it may be awaited, as vLLM's. True: it always can."""
        check_keywords("AsyncLLM", "reset_prefix_cache", vllms)
        self._check_event_loop()
        self._send(EngineCoreRequestType.RESET_PREFIX_CACHE)
        return Done()

    def stats(self) -> EngineStats:
        return self.engine.stats()  # type: ignore[no-any-return]

    async def snapshots(self) -> list[EngineSnapshot]:
        return [snapshot_of(self.engine)]

    def shutdown(self, timeout: float | None = None) -> Done:
        """Abort what is unfinished, and end: `llm.shutdown()`, as in vLLM, waits for the step that runs; with `await`,
        or in the event loop, a thread does.

        timeout: at most so many seconds for that, where nothing is awaited.

        Raises:
            RuntimeError: it serves another event loop. Nothing has happened then.
        """
        if self._forked is not None:
            return Done(lambda: asyncio.sleep(0))
        self._check_event_loop()
        self._shut_down()
        self._loop = None
        self._hand_over()
        closing = threading.Thread(target=self._busy.close, name="folovllm-closing")
        closing.start()
        if asyncio._get_running_loop() is None:
            closing.join(timeout)
        return Done(lambda: asyncio.to_thread(closing.join))

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    async def _open(self) -> None:
        if self._forked is not None:
            raise self._forked
        self._check_event_loop()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._pacing, self._waiting = Pacing(self._wake), {}  # an event loop before it may have left a rest unended

    def _check_event_loop(self) -> None:
        if self._loop is not None and self._loop.is_closed():  # what waited there will never ask again
            self._loop = None
            self._hand_over()
            for number, collector in self._collectors.items():
                self._send(EngineCoreRequestType.ABORT, number, collector.state.request_id)
                self.output_processor.abort_request(number)
            self._collectors, self._numbers = {}, {}
        elif self._loop is not None and asyncio._get_running_loop() not in (None, self._loop):
            raise RuntimeError(
                "AsyncLLM serves one event loop at a time, and this is another: await shutdown() or close the other "
                "loop first, or make an AsyncLLM for each"
            )

    def _send(self, kind: EngineCoreRequestType, *arguments: Any) -> None:
        """What comes in one turn of the event loop is handed over together: requests that come together share steps."""
        self._unsent.append((kind, arguments))
        if self._loop is None:
            self._hand_over()
        elif len(self._unsent) == 1:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._busy.submit(unsent)

    def _deliver(self, message: EngineCoreOutputs | Exception) -> None:
        """In the loop's thread. Raises RuntimeError: the event loop has been closed, or there is none any more."""
        if (loop := self._loop) is None:
            raise RuntimeError("no event loop is served")
        loop.call_soon_threadsafe(self.receive, message)


AsyncLLMEngine = AsyncLLM  # vLLM's other name of it
