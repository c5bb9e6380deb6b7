"""A replica: one engine's core in a process, on any machine of the cluster. No Ray in here: it is a plain class.

vLLM: v1/engine/core.py (EngineCoreProc)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.busy_loop import BusyLoop
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType, Key, ReadyResponse
from folovllm.engine.pacing import Pacing
from folovllm.engine.snapshots import EngineSnapshot, snapshot_of
from folovllm.serving.engine_process import portable


@dataclass
class _Stream:
    """What has come for one request and has not been sent, as one message."""

    waiting: EngineCoreOutputs = field(default_factory=EngineCoreOutputs)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    has_begun: bool = False
    is_over: bool = False


class EngineReplica:
    """Args: as for AsyncLLM. Its methods are coroutines, so that all of them run in one event loop."""

    def __init__(self, name: str, model: str, options: dict[str, Any]) -> None:
        self.name, self.engine = name, LLMEngine(config_for_llm(model, **options))
        self._busy = BusyLoop(self.engine.core, self.engine.input_processor, self._deliver)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[Key, _Stream] = {}
        self._pacing = Pacing(self._wake)
        self._error: Exception | None = None

    async def facts(self) -> ReadyResponse:
        return ReadyResponse.of(self.engine)

    async def generate(self, request: EngineCoreRequest) -> AsyncGenerator[EngineCoreOutputs, None]:
        """What comes of it, until its last sequence has ended. Raises: what ended the engine."""
        if self._error is not None:
            raise self._error
        self._loop = asyncio.get_running_loop()
        stream = self._streams[request.key] = _Stream()
        self._busy.submit([(EngineCoreRequestType.ADD, (request,))])
        try:
            while not stream.is_over or stream.filled.is_set():
                await stream.filled.wait()
                stream.filled.clear()
                message, stream.waiting = stream.waiting, EngineCoreOutputs()
                yield message
        finally:
            del self._streams[request.key]
            await self.abort(request.key, request.request_id)

    async def abort(self, key: int, request_id: str, index: int | None = None) -> None:
        self._busy.submit([(EngineCoreRequestType.ABORT, (key, request_id, index))])

    async def reset_prefix_cache(self) -> None:
        self._busy.submit([(EngineCoreRequestType.RESET_PREFIX_CACHE, ())])

    async def flush_kv_offload(self) -> None:
        """Returns when other engines can read the blocks of what has been computed so far."""
        await asyncio.wrap_future(self._busy.flush())

    async def snapshot(self) -> EngineSnapshot:
        return snapshot_of(self.engine, self.name)

    async def check_health(self) -> None:
        """Asked once a second. Raises RuntimeError where only another process can help: this one is then replaced."""
        if self._error is not None:
            raise RuntimeError(f"the engine of {self.name} has ended by an error")

    def _deliver(self, message: EngineCoreOutputs | Exception) -> None:
        """In the loop's thread. Raises RuntimeError: the event loop has been closed."""
        assert self._loop is not None
        alive = {request.key for request in self.engine.core.requests.values()}
        self._loop.call_soon_threadsafe(self._take, message, alive)

    def _take(self, message: EngineCoreOutputs | Exception, alive: set[Key]) -> None:
        """Each stream gets what is its own; `alive`: the core's unfinished requests."""
        streams = self._streams
        if isinstance(message, Exception):
            self._error, alive = portable(message), set()
            message = EngineCoreOutputs(failures=dict.fromkeys(streams, self._error))
        for output in message.by_sequence():
            if output.key in streams:
                streams[output.key].waiting.outputs.append(output)
        message.failures = {key: portable(error) for key, error in message.failures.items()}
        for name in ("failures", "prefill_stats", "prompt_logprobs"):
            for key, found in getattr(message, name).items():
                if key in streams:
                    getattr(streams[key].waiting, name)[key] = found
        for key, stream in streams.items():
            if stream.has_begun or stream.waiting.outputs or stream.waiting.failures:
                stream.is_over = key not in alive
                if stream.is_over or not stream.has_begun:
                    stream.has_begun = True
                    stream.filled.set()
        self._pacing.hand_out()

    def _wake(self) -> bool:
        more = [stream for stream in self._streams.values() if stream.waiting.outputs]
        for stream in more:
            stream.filled.set()
        return bool(more)
