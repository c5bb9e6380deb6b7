"""A replica: one engine's core in a process, on any machine of the cluster. No Ray in here: it is a plain class.

vLLM: v1/engine/core.py (EngineCoreProc)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from folovllm.engine.busy_loop import BusyLoop
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType, Key
from folovllm.engine.pacing import Pacing
from folovllm.engine.snapshots import EngineSnapshot, snapshot_of
from folovllm.serving.engine_process import RemoteFacts, portable


class _Stream:
    """What has come for one request and has not been sent, as one message, and which of its sequences have ended."""

    def __init__(self, request: EngineCoreRequest) -> None:
        self.waiting, self.filled, self.has_begun = EngineCoreOutputs(), asyncio.Event(), False
        self.ended: set[int] = set()
        self._num_seqs = None if request.params.use_beam_search else request.params.best_of

    @property
    def is_over(self) -> bool:
        """Of a beam search all winners come together."""
        return bool(self.waiting.failures) or len(self.ended) == (self._num_seqs or len(self.ended) or 1)


class EngineReplica:
    """Args: as for AsyncLLM. Its methods are coroutines, so that all of them run in one event loop."""

    def __init__(self, name: str, model: str, options: dict[str, Any]) -> None:
        self.name, self.engine = name, LLMEngine(config_for_llm(model, **options))
        self._busy = BusyLoop(self.engine.core, self.engine.input_processor, self._deliver)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[Key, _Stream] = {}
        self._more: set[_Stream] = set()  # those with more to send, when they have rested
        self._pacing = Pacing(self._wake)
        self._error: Exception | None = None

    async def facts(self) -> RemoteFacts:
        return RemoteFacts.of(self.engine)

    async def generate(self, request: EngineCoreRequest) -> AsyncGenerator[EngineCoreOutputs, None]:
        """What comes of it, until its last sequence has ended. Raises: what ended the engine."""
        self._loop = asyncio.get_running_loop()
        stream = self._streams[request.key] = _Stream(request)
        self._busy.submit([(EngineCoreRequestType.ADD, (request,))])
        try:
            is_over = False
            while not is_over:
                await stream.filled.wait()
                stream.filled.clear()
                if self._error is not None:
                    raise self._error
                is_over, message, stream.waiting = stream.is_over, stream.waiting, EngineCoreOutputs()
                yield message
        finally:
            del self._streams[request.key]
            await self.abort(request.key, request.request_id)

    async def abort(self, key: int, request_id: str, index: int | None = None) -> None:
        self._busy.submit([(EngineCoreRequestType.ABORT, (key, request_id, index))])
        if index is not None and (stream := self._streams.get(key)) is not None:
            stream.ended.add(index)
            stream.filled.set()

    async def reset_prefix_cache(self) -> None:
        self._busy.submit([(EngineCoreRequestType.RESET_PREFIX_CACHE, ())])

    async def snapshot(self) -> EngineSnapshot:
        return snapshot_of(self.engine, self.name)

    async def check_health(self) -> None:
        """Asked once a second. Raises RuntimeError where only another process can help: this one is then replaced."""
        if self._error is not None:
            raise RuntimeError(f"the engine of {self.name} has ended by an error")

    def close(self) -> None:
        self._busy.close()

    def _deliver(self, message: EngineCoreOutputs | Exception) -> None:
        """In the loop's thread. Raises RuntimeError: the event loop has been closed."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._take, message)

    def _take(self, message: EngineCoreOutputs | Exception) -> None:
        """Each stream gets what is its own."""
        if isinstance(message, Exception):
            self._error = portable(message)
            for each in self._streams.values():
                each.filled.set()
            return
        streams = self._streams
        for output in message.outputs:
            if output.key in streams:
                streams[output.key].waiting.outputs.append(output)
                if output.finish_reason is not None:
                    streams[output.key].ended.add(output.seq_index)
                self._more.add(streams[output.key])
        message.failures = {key: portable(error) for key, error in message.failures.items()}
        for name in ("failures", "prefill_stats", "prompt_logprobs"):
            for key, found in getattr(message, name).items():
                if key in streams:
                    getattr(streams[key].waiting, name)[key] = found
                    self._more.add(streams[key])
        for stream in [stream for stream in self._more if stream.is_over or not stream.has_begun]:
            self._more.remove(stream)
            stream.has_begun = True
            stream.filled.set()
        if self._more:
            self._pacing.hand_out()

    def _wake(self) -> bool:
        more, self._more = self._more, set()
        for stream in more:
            stream.filled.set()
        return bool(more)
