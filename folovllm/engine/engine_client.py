"""EngineClient: an engine for asyncio, wherever its core runs. Text, streams, aborts and pacing are here alone.

    AsyncLLM         the core in a thread of this process     (async_llm.py)
    MPClient         the core in a process                    (serving/mp_client.py)
    ReplicatedLLM    several cores on Ray, and a router       (serving/replicas/client.py)

Each of them says how a request is sent; what comes back goes to receive(). There new tokens are added to the requests'
states, and a state becomes text when its reader is woken.

vLLM: engine/protocol.py (EngineClient), v1/engine/core_client.py
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing
from itertools import count
from typing import Any

from folovllm.distributed.forks import keep_from_forks
from folovllm.engine.input_processor import ProcessedInputs, Prompt
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType, Key, SchedulerStats
from folovllm.engine.output_processor import OutputProcessor, RequestState
from folovllm.engine.pacing import Pacing
from folovllm.engine.snapshots import EngineSnapshot
from folovllm.lora.request import LoRARequest
from folovllm.outputs import OutputDelta, PoolingRequestOutput, RequestOutput, check_can_stream
from folovllm.pooling_params import PoolingParams
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.utils.checks import check_str
from folovllm.utils.ids import next_unused
from folovllm.vllm_names import KnowsVLLM, check_keywords

AT_ONCE = 512
"""Completions whose texts are made on the event loop, at some 30 µs each. Those of a request with more are made in a
thread."""


class RequestOutputCollector:
    """What a reader waits on: the state of its request, or what ended it. A slow reader gets the newest, and holds no
    one up.

    vLLM: v1/engine/output_processor.py (RequestOutputCollector)
    """

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self.error: Exception | None = None
        self.has_begun = False  # it has been woken
        self._filled = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """The last output is here, or an error: nothing that comes later counts."""
        return self.error is not None or self.state.finished

    def fail(self, error: Exception) -> None:
        if not self.is_over:
            self.error = error
            self._filled.set()

    def wake(self) -> None:
        self.has_begun = True
        self._filled.set()

    async def get(self) -> RequestOutput:
        """Waits for the next one. Raises what ended the request."""
        await self._filled.wait()
        self._filled.clear()
        if self.error is not None and not self.state.finished:  # its last output may have been late
            raise self.error
        if len(self.state.sequences) <= AT_ONCE:
            return self.state.output()
        self.state.late = []
        return await asyncio.to_thread(self.state.output)


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
        self.output_processor = OutputProcessor(engine.input_processor.tokenizer)
        self._load = SchedulerStats(engine.config.scheduler_config.max_num_seqs, 0, 0, 0)
        self._collectors: dict[Key, RequestOutputCollector] = {}  # of unfinished requests, by number
        self._numbers: dict[str, int] = {}  # of the same, by id
        self._waiting: dict[Key, RequestOutputCollector] = {}  # those with more to read, when they have rested
        self._pacing = Pacing(self._wake)
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

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing any more: after shutdown(), or after an error of the engine itself."""
        return self._ended is not None

    def load(self) -> SchedulerStats:
        """What runs and waits; cheap enough to ask for each request."""
        return self._load

    has_replicas = False

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
        lora_request: LoRARequest | None = None,
        **vllms: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they grow; each holds everything so far, the last one is `finished`.

        `output_kind`, or that of the parameters, says what is handed out. Under DELTA each output holds what is new
        since the one before. Under FINAL_ONLY there is one output, and the steps before it wake no consumer.

        `lora_request` names the adapter that answers, which the engine reads when the request arrives.

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
        final_only = kind is RequestOutputKind.FINAL_ONLY
        known = number, request_id, checked.text, checked.token_ids, checked.params
        state = self.output_processor.add_request(*known, final_only=final_only)
        collector = self._collectors[number] = RequestOutputCollector(state)
        try:
            request = EngineCoreRequest(number, request_id, checked, checked.params, priority, lora_request)
            self._send(EngineCoreRequestType.ADD, request)
            delta, finished = OutputDelta(), False
            while not finished:
                output = await collector.get()
                self._catch_up(state)
                finished = output.finished
                yield delta.since_last(output) if kind is RequestOutputKind.DELTA else output
        except _Aborted:
            return
        finally:
            if self._collectors.pop(number, None) is not None:  # it is not there where an event loop has taken over
                del self._numbers[request_id]
                self._waiting.pop(number, None)
                self.output_processor.abort_request(number)
                if not collector.is_over:
                    self._send(EngineCoreRequestType.ABORT, number, request_id)

    async def encode(
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str | None = None, **options: Any
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """The vector of one prompt, once it is there; `options` as of generate()."""
        stream = self.generate(prompt, pooling_params, request_id, **options)  # type: ignore[arg-type]
        async with aclosing(stream) as outputs:
            async for output in outputs:
                if output.finished:
                    yield PoolingRequestOutput.of(output)

    def _catch_up(self, state: RequestState) -> None:
        """With what came while a thread made an output."""
        late, state.late = state.late, None
        if late:
            self.receive(EngineCoreOutputs(late))

    async def _check(self, prompt: Prompt, params: SamplingParams | None) -> ProcessedInputs:
        """Raises ValueError: see InputProcessor.check."""
        if isinstance(prompt, ProcessedInputs) and params is None:
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
            collector.fail(_Aborted())
            self._send(EngineCoreRequestType.ABORT, number, request_id)
        return Done()

    def receive(self, message: EngineCoreOutputs | Exception) -> None:
        """What a step made, or the error that ended the engine."""
        if isinstance(message, Exception):
            self._end(message)
            return
        self._load = message.scheduler_stats or self._load
        changed, stopped = self.output_processor.process_outputs(message)
        for state, index in stopped:  # the core may have computed more of it: nothing of that is looked at
            self._send(EngineCoreRequestType.ABORT, state.key, state.request_id, index)
        for key, error in message.failures.items():
            if (collector := self._collectors.get(key)) is not None:
                collector.fail(error)
        for state in changed:
            if (collector := self._collectors.get(state.key)) is None:
                continue
            if state.finished or not collector.has_begun:
                collector.wake()
            else:
                self._waiting[state.key] = collector
        if self._waiting:
            self._pacing.hand_out()

    def _wake(self) -> bool:
        waiting, self._waiting = self._waiting, {}
        for collector in waiting.values():
            collector.wake()
        return bool(waiting)

    def _end(self, error: Exception) -> None:
        self._ended = error
        for collector in self._collectors.values():
            collector.fail(error)

    def forked(self, error: Exception) -> None:
        self._ended = self._forked = error
        self._collectors = {}

    def _shut_down(self) -> None:
        """The consumers get an error, and nothing more is taken."""
        self._end(RuntimeError(f"{type(self).__name__} has been shut down"))


class _Aborted(Exception):  # noqa: N818  named after what happened
    """Ends a consumer's loop without an error."""
