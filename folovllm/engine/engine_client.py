"""EngineClient: an engine for asyncio, wherever it runs. Streams, aborts and pacing are here, and here alone.

    AsyncLLM         the engine's loop in a thread of this process     (async_llm.py)
    MPClient         the engine's loop in a process                    (serving/mp_client.py)
    ReplicatedLLM    several engines on Ray, and a router              (serving/replicas/client.py)

Each of them says how a request is sent; what comes back goes to receive().

vLLM: engine/protocol.py (EngineClient), v1/engine/core_client.py
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from itertools import count
from typing import Any

from folovllm.distributed.forks import keep_from_forks
from folovllm.engine.busy_loop import LONGEST_REST, REST
from folovllm.engine.deltas import DeltaDecoder
from folovllm.engine.input_processor import Checked, Prompt
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
from folovllm.engine.snapshots import EngineSnapshot, Load
from folovllm.outputs import OutputDelta, RequestOutput, check_can_stream
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.utils.checks import check_str
from folovllm.utils.ids import next_unused
from folovllm.vllm_names import KnowsVLLM, check_keywords

AT_ONCE = 512
"""Completions whose texts are made on the event loop, at some 30 µs each. Of a request with more of them the engine
sends parts as they come, even where the reader waits for the last output."""


class OutputCollector:
    """The newest output of one request, or what ended it, until its reader takes it. A slow reader gets the newest, and
    holds no one up.

    vLLM: v1/engine/output_processor.py (RequestOutputCollector)
    """

    def __init__(self, request_id: str, decoder: DeltaDecoder | None = None) -> None:
        self.request_id, self._decoder = request_id, decoder
        self.final_only = False  # its reader waits for the last output
        self.is_over = False
        """The last output is here, or an error: nothing that comes later counts."""
        self._newest: RequestOutput | Exception | None = None
        self._late: list[RequestOutput] = []  # of so many completions that their texts would hold the others up
        self._in_thread = False  # where the decoder is at work
        self._filled = asyncio.Event()

    def put(self, output: RequestOutput | Exception) -> None:
        if self.is_over:
            return
        self.is_over = isinstance(output, Exception) or output.finished
        self._newest = output
        if self._decoder is not None and isinstance(output, RequestOutput):
            if self._late or self._in_thread or len(output.outputs) > AT_ONCE:
                self._late.append(output)
            else:
                self._decoder.add(output)
        if self.is_over or not self.final_only:
            self._filled.set()

    async def get(self) -> RequestOutput:
        """Waits for the next one. Raises what ended the request."""
        await self._filled.wait()
        self._filled.clear()
        if isinstance(self._newest, Exception):
            raise self._newest
        assert self._newest is not None
        if self._decoder is None:
            return self._newest
        if not self._late and self._decoder.num_completions <= AT_ONCE:
            return self._decoder.output()
        self._in_thread = True
        try:
            return await asyncio.to_thread(self._catch_up, self._decoder)
        finally:
            self._in_thread = False

    def _catch_up(self, decoder: DeltaDecoder) -> RequestOutput:
        while self._late:
            decoder.add(self._late.pop(0))
        return decoder.output()


class Done(Coroutine[Any, Any, bool]):
    """What has been done already: True for those who await it, or give it to asyncio.run(). Others need not.

    wait: makes what there is more to wait for.
    """

    def __init__(self, wait: Callable[[], Awaitable[object]] | None = None) -> None:
        self._wait = wait
        self._waiting: Coroutine[Any, Any, bool] | None = None

    async def _wait_for_it(self) -> bool:
        if self._wait is not None:
            await self._wait()
        return True

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._wait_for_it().__await__()

    def send(self, value: Any) -> Any:
        self._waiting = self._waiting or self._wait_for_it()
        return self._waiting.send(value)

    def throw(self, *error: Any) -> Any:
        self._waiting = self._waiting or self._wait_for_it()
        return self._waiting.throw(*error)

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.close()


class EngineClient(KnowsVLLM, ABC):
    """It serves one event loop. `engine`: an LLMEngine, or what is known here of one elsewhere."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._load = Load(engine.config.scheduler_config.max_num_seqs, 0, 0, 0)
        self._collectors: dict[int, OutputCollector] = {}  # of unfinished requests, by number
        self._numbers: dict[str, int] = {}  # of the same, by id
        self._new_numbers, self._new_ids = count(), count()
        self._ended: Exception | None = None  # why nothing more is taken
        self._forked: Exception | None = None  # this is a copy, in a fork
        keep_from_forks(self)

    @abstractmethod
    async def _open(self) -> None:
        """Before anything is sent. Raises RuntimeError: another event loop is served."""

    @abstractmethod
    def _send(self, kind: EngineCoreRequestType, *arguments: Any) -> None:
        """To the engine, without waiting: a consumer that was cancelled cannot await anything."""

    def _collector(self, request_id: str, checked: Checked) -> OutputCollector:
        return OutputCollector(request_id)

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing any more: after shutdown(), or after an error of the engine itself."""
        return self._ended is not None

    def load(self) -> Load:
        """What runs and waits; cheap enough to ask for each request."""
        return self._load

    def replicas(self) -> dict[str, str]:
        """Name and state of each replica: none where there is one engine."""
        return {}

    @abstractmethod
    async def snapshots(self) -> list[EngineSnapshot]:
        """One of each engine that is behind this object."""

    async def reset_prefix_caches(self) -> None:
        """Forget what has been computed, before the next step, in each engine that is behind this object: requests that
        come from now on find nothing of it."""
        await self._open()
        self._send(EngineCoreRequestType.RESET_PREFIX_CACHE)

    @abstractmethod
    def shutdown(self) -> Awaitable[object]:
        """Abort what is unfinished, and end. The consumers get a RuntimeError."""

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        output_kind: RequestOutputKind | None = None,
        **vllms: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they grow; each holds everything so far, the last one is `finished`.

        `output_kind`, or that of the parameters, says what is handed out. Under DELTA each output holds what is new
        since the one before. Under FINAL_ONLY there is one output, and the steps before it wake no consumer.

        Leaving the loop early, or cancelling the task that runs it, aborts the request. So does abort(), which ends the
        loop without a finished output.

        Raises:
            ValueError: see LLMEngine.add_request; DELTA where the winners are known only at the end: beams, and
                best_of > n.
            RuntimeError: it has been shut down, or serves another event loop.
            Exception: what ended this request, such as an error in a logits processor: other requests go on.
                Or what ended the engine.
        """
        check_keywords("AsyncLLM", "generate", vllms)
        kind = output_kind or getattr(sampling_params, "output_kind", RequestOutputKind.CUMULATIVE)
        if kind is RequestOutputKind.DELTA:
            check_can_stream(sampling_params)
        if self._ended is not None:
            if self._forked is not None:
                raise self._forked
            raise RuntimeError(f"{type(self).__name__} has been shut down: make another") from self._ended
        checked = await self._check(prompt, sampling_params)
        await self._open()
        if request_id is None:
            request_id = next_unused("async", self._new_ids, self._numbers.__contains__)
        check_str("request_id", request_id)
        if request_id in self._numbers:
            raise ValueError(f"request_id {request_id!r} belongs to an unfinished request: choose another")
        number = self._numbers[request_id] = next(self._new_numbers)
        collector = self._collectors[number] = self._collector(request_id, checked)
        try:
            collector.final_only = kind is RequestOutputKind.FINAL_ONLY
            at_end = collector.final_only and checked.params.n <= AT_ONCE
            request = EngineCoreRequest(request_id, checked, checked.params, priority, at_end)
            self._send(EngineCoreRequestType.ADD, number, request)
            delta, finished = OutputDelta(), False
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield delta.since_last(output) if kind is RequestOutputKind.DELTA else output
        except _Aborted:
            return
        finally:
            if self._collectors.pop(number, None) is not None:  # it is not there where an event loop has taken over
                del self._numbers[request_id]
                if not collector.is_over:
                    self._send(EngineCoreRequestType.ABORT, number, request_id)

    async def _check(self, prompt: Prompt, params: SamplingParams | None) -> Checked:
        """Raises ValueError: see InputProcessor.check."""
        if isinstance(prompt, Checked) and params is None:
            return prompt
        processor = self.engine.input_processor
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:  # which may take seconds
            await asyncio.to_thread(processor.grammars.compile, params.structured_outputs)
        return next(processor.check([prompt], params))

    def abort(self, request_id: str) -> Done:
        """Drop a request; its generate() ends. An unknown or finished one is no error. It may be awaited, as vLLM's."""
        check_str("request_id", request_id)
        number = self._numbers.get(request_id, -1)
        if (collector := self._collectors.get(number)) is not None and not collector.is_over:
            collector.put(_Aborted())
            self._send(EngineCoreRequestType.ABORT, number, request_id)
        return Done()

    def receive(self, message: EngineCoreOutputs | Exception) -> None:
        """What a step made, or the error that ended the engine."""
        if isinstance(message, Exception):
            self._end(message)
            return
        began = time.perf_counter()
        self._load = message.load
        for number, output in message.outputs:
            if (collector := self._collectors.get(number)) is not None:
                collector.put(output)
        if message.wants_ready:  # in line behind the readers, each of which has been woken
            asyncio.get_running_loop().call_soon(self._rest, began)

    def _rest(self, began: float) -> None:
        """The readers have written."""
        seconds = min(REST * (time.perf_counter() - began), LONGEST_REST)
        self._send(EngineCoreRequestType.READY, seconds)

    def _end(self, error: Exception) -> None:
        self._ended = error
        for collector in self._collectors.values():
            collector.put(error)

    def forked(self, error: Exception) -> None:
        self._ended = self._forked = error
        self._collectors = {}

    def _shut_down(self) -> None:
        """The consumers get an error, and nothing more is taken."""
        self._end(RuntimeError(f"{type(self).__name__} has been shut down"))


class _Aborted(Exception):  # noqa: N818  named after what happened
    """Ends a consumer's loop without an error."""
