"""AsyncLLM: the same engine for many users at once, each awaiting its own outputs.

One asyncio task runs the step loop. The step itself goes to a thread, so that the event loop stays free to take new
requests and to hand out what has come; everything else that touches the engine happens between two steps, in order:

    consumers    generate("a")      generate("b")     cancel a
                      │                  │               │            (a command each, applied between steps)
    loop task    ── add a ── step ── add b ── step ── abort a ── step ──
                             (thread)         (thread)           (thread)

A consumer that is slow loses nothing: outputs are cumulative, so only the newest one waits for it.

vLLM: v1/engine/async_llm.py, v1/engine/output_processor.py (RequestOutputCollector)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.input_processor import Prompt
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.stats import EngineStats
from folovllm.outputs import OutputDelta, RequestOutput, check_can_stream
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.utils.checks import check_str
from folovllm.utils.ids import next_unused


class RequestOutputCollector:
    """The newest output of one request, or the error that ended it, until its consumer takes it."""

    def __init__(self) -> None:
        self.is_open = False  # True from add to the end: an earlier output is of another request with the same id
        self._filled = asyncio.Event()
        self._output: RequestOutput | None = None
        self._error: BaseException | None = None

    def put(self, output: RequestOutput) -> None:
        self._output = output
        self._filled.set()

    def fail(self, error: BaseException) -> None:
        """Keep the error for the consumer, except where the last output is there already, fetched or not."""
        if self._output is not None and self._output.finished:
            return
        self._error = error
        self._filled.set()

    async def get(self) -> RequestOutput:
        await self._filled.wait()
        self._filled.clear()
        if self._error is not None:
            raise self._error
        assert self._output is not None
        return self._output


class AsyncLLM:
    """An engine for asyncio.

        async with AsyncLLM() as llm:
            async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=32)):
                print(output.outputs[0].text)

    Args: as for LLM. Raises: as LLM does.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        self._start(LLMEngine(config_for_llm(model, **kwargs)))

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> AsyncLLM:
        """Serve an engine that exists. Until shutdown() no other code may use it."""
        self = cls.__new__(cls)
        self._start(engine)
        return self

    def _start(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._collectors: dict[str, RequestOutputCollector] = {}
        self._commands: list[Callable[[], None]] = []
        self._request_ids = count()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="folovllm-step")

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they grow; each holds everything so far, the last one is `finished`.

        The parameters' `output_kind` may ask for less. Under DELTA each output holds what is new since the one before,
        under FINAL_ONLY the last one comes alone.

        Leaving the loop early, or cancelling the task that runs it, aborts the request. So does abort(), which ends the
        loop without a finished output.

        Raises:
            ValueError: see LLMEngine.add_request; DELTA where the winners are known only at the end (best_of > n).
            RuntimeError: the engine has been shut down, or serves another event loop.
            Exception: what ended this request, such as an error in its own logits processor. Other requests go on.
        """
        kind = getattr(sampling_params, "output_kind", RequestOutputKind.CUMULATIVE)
        if kind is RequestOutputKind.DELTA:
            check_can_stream(sampling_params)
        if self._closed:
            raise RuntimeError("AsyncLLM has been shut down: make another")
        self._check_event_loop()
        if request_id is None:
            request_id = next_unused("async", self._request_ids, self._collectors.__contains__)
        check_str("request_id", request_id)
        if request_id in self._collectors:
            raise ValueError(f"request_id {request_id!r} belongs to an unfinished request: choose another")
        if self._task is None or self._task.done():  # the first, or the first after an event loop that has ended
            self._wake = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())
        collector = self._collectors[request_id] = RequestOutputCollector()
        try:
            self._submit(lambda: self._add(collector, request_id, prompt, sampling_params, priority))
            delta, finished = OutputDelta(), False
            while not finished:
                output = await collector.get()
                finished = output.finished
                if kind is RequestOutputKind.DELTA:
                    yield delta.since_last(output)
                elif finished or kind is RequestOutputKind.CUMULATIVE:
                    yield output
        except _Aborted:
            return
        finally:
            if self._collectors.get(request_id) is collector:  # it is not where a later event loop has taken over
                del self._collectors[request_id]
                # A finished request is aborted as well, which does nothing: the consumer may leave before the last
                # output.
                self._submit(lambda: self.engine.abort_request(request_id))

    def abort(self, request_id: str) -> None:
        """Drop a request; its generate() ends. An unknown or finished one is no error."""
        self._check_event_loop()
        check_str("request_id", request_id)
        collector = self._collectors.get(request_id)
        if collector is not None:
            collector.fail(_Aborted())
            self._submit(lambda: self.engine.abort_request(request_id))

    def reset_prefix_cache(self) -> None:
        """Forget what has been computed, before the next step: requests that come from now on find nothing of it."""
        self._check_event_loop()
        self._submit(self.engine.reset_prefix_cache)

    def stats(self) -> EngineStats:
        return self.engine.stats()

    async def shutdown(self) -> None:
        """Abort what is unfinished, finish the step that runs, end the loop. Their consumers get a RuntimeError.

        Raises:
            RuntimeError: it serves another event loop. Nothing has happened then.
        """
        self._check_event_loop()
        self._closed = True
        for collector in self._collectors.values():
            collector.fail(RuntimeError("AsyncLLM has been shut down"))
        self._commands += [partial(self.engine.abort_request, request_id) for request_id in self._collectors]
        self._wake.set()
        if self._task is not None and not self._task.done():
            await self._task
        self._thread.shutdown()
        for command in self._commands:  # the loop may have ended before: by an error, or with its event loop
            command()
        self._commands = []

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    def _check_event_loop(self) -> None:
        """Raises RuntimeError where another event loop is served. One that was closed, the loop task still in it, has
        let go: what waited there will never ask again."""
        if self._task is None or self._task.done():
            return
        served = self._task.get_loop()
        if served.is_closed():
            self._commands += [partial(self.engine.abort_request, request_id) for request_id in self._collectors]
            self._collectors, self._task = {}, None
        elif asyncio._get_running_loop() not in (None, served):
            raise RuntimeError(
                "AsyncLLM serves one event loop at a time, and this is another: await shutdown() or end the other loop "
                "first, or make an AsyncLLM for each"
            )

    def _submit(self, command: Callable[[], None]) -> None:
        """Run `command` between two steps. This is no coroutine, because a cancelled consumer cannot await anything."""
        self._commands.append(command)
        self._wake.set()

    def _add(
        self, collector: RequestOutputCollector, request_id: str, prompt: Prompt, params: SamplingParams | None,
        priority: int,
    ) -> None:  # fmt: skip
        if self._collectors.get(request_id) is not collector:
            return  # cancelled before it began
        try:
            self.engine.add_request(request_id, prompt, params, priority=priority)
            collector.is_open = True
        except Exception as error:
            collector.fail(error)

    async def _run(self) -> None:
        """The step loop, from the first request to the shutdown."""
        try:
            await self._serve(asyncio.get_running_loop())
        except asyncio.CancelledError:  # as when all tasks of the event loop are cancelled
            for collector in self._collectors.values():
                collector.fail(RuntimeError("the task that steps the engine was cancelled"))
            raise
        except Exception as error:  # an error of the engine itself: every consumer gets it, and none waits in vain
            self._closed = True
            for collector in self._collectors.values():
                collector.fail(error)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        await loop.run_in_executor(self._thread, lambda: None)  # a step that an earlier event loop left running
        while True:
            self._wake.clear()
            commands, self._commands = self._commands, []
            for command in commands:
                command()
            if self._closed and not self._commands:
                return
            if self.engine.has_unfinished_requests():
                await loop.run_in_executor(self._thread, self.engine.advance)
                self._deliver()
            else:
                await self._wake.wait()

    def _deliver(self) -> None:
        outputs, failures = self.engine.drain()
        open_collectors = {name: each for name, each in self._collectors.items() if each.is_open}
        for output in outputs:
            if (collector := open_collectors.get(output.request_id)) is not None:
                collector.put(output)
        for request_id, error in failures.items():
            if (collector := open_collectors.get(request_id)) is not None:
                collector.fail(error)


class _Aborted(Exception):  # noqa: N818  named after what happened
    """Ends a consumer's loop without an error."""
