"""The front of an engine in a process of its own: what a server asks of an engine, sent there, and what comes back.

    generate("a") ── ADD a ──▶ EngineProc      each request has its Arriving, which adds up what comes
    generate("b") ◀── News ──                  and holds the newest output until its reader takes it

shutdown() ends the process. If it dies by itself, every request ends in EngineDeadError, and nothing more is taken.

vLLM: v1/engine/core_client.py (AsyncMPClient)
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count

from folovllm.engine.input_processor import Prompt
from folovllm.engine.looks import EngineLook, Load
from folovllm.engine.step_thread import LONGEST_REST, REST
from folovllm.errors import EngineDeadError
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.serving.engine_proc import LENGTH, News, Order, packed, read
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.front_engine import FrontEngine
from folovllm.serving.wire import Arriving, Ask
from folovllm.utils.checks import check_str
from folovllm.utils.ids import next_unused

GLANCE = 2.0
"""Seconds that /metrics and the page wait for a look."""
PATIENCE = 30.0
"""Seconds that the process has for the step that runs when it is told to end."""


class MPClient:
    """An EngineClient, of the engine that `process` makes. It serves one event loop.

    Raises: as AsyncLLM does. EngineDeadError: the process ended while the model was being loaded.
    """

    def __init__(self, process: EngineProcess) -> None:
        self._engine, self._process, self._connection = process, process.process, process.connection
        try:
            facts = read(self._connection)
            if isinstance(facts, Exception):
                raise facts
            self.engine = FrontEngine(facts)
        except EOFError:
            self._process.join()
            raise self._dead("before it was ready") from None
        except BaseException:
            process.close()
            raise
        self._load = Load(facts.config.scheduler_config.max_num_seqs, 0, 0, 0)
        self._request_ids = count()
        self._arriving: dict[str, Arriving] = {}
        self._look: asyncio.Future[EngineLook] | None = None  # the newest, for all who ask before it is here
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._ended: Exception | None = None  # why nothing more is taken

    @property
    def is_closed(self) -> bool:
        return self._ended is not None or not self._process.is_alive()

    def load(self) -> Load:
        """As the engine told it last."""
        return self._load

    def replicas(self) -> dict[str, str]:
        return {}

    async def looks(self) -> list[EngineLook]:
        """Raises EngineDeadError; TimeoutError: the process does not answer."""
        await self._open()
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_future()
            self._send(Order.LOOK)
        look = self._look
        await asyncio.wait([look], timeout=GLANCE)
        if not look.done():
            raise TimeoutError(f"the engine has not answered for {GLANCE:g} s: try again")
        return [look.result()]

    async def reset_prefix_caches(self) -> None:
        """Before the next step. Raises EngineDeadError."""
        await self._open()
        self._send(Order.RESET_PREFIX_CACHE)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        output_kind: RequestOutputKind | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As AsyncLLM.generate, but without DELTA, which no server asks for. Every request is checked here.

        Raises:
            ValueError: output_kind is DELTA; request_id is in use.
            EngineDeadError: the engine's process has ended.
            RuntimeError: this client has been shut down.
        """
        if output_kind is RequestOutputKind.DELTA:
            raise ValueError("output_kind must be CUMULATIVE or FINAL_ONLY where a process serves, got DELTA")
        checked = self.engine.checked(prompt, sampling_params)
        await self._open()
        if request_id is None:
            request_id = next_unused("async", self._request_ids, self._arriving.__contains__)
        check_str("request_id", request_id)
        if request_id in self._arriving:
            raise ValueError(f"request_id {request_id!r} belongs to an unfinished request: choose another")
        arriving = self._arriving[request_id] = Arriving(self.engine.growing(checked))
        self._send(Order.ADD, Ask.of(request_id, checked, priority), output_kind is RequestOutputKind.FINAL_ONLY)
        try:
            async with aclosing(arriving.outputs()) as outputs:
                async for output in outputs:
                    yield output
        finally:
            del self._arriving[request_id]
            if not arriving.is_over:
                self._send(Order.ABORT, request_id)

    async def shutdown(self) -> None:
        """End what is unfinished, with a RuntimeError, and the process."""
        self._end(RuntimeError("the engine has been shut down"))
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        self._connection.close()
        await asyncio.to_thread(self._process.join, PATIENCE)
        self._engine.close()

    async def _open(self) -> None:
        """The connection belongs to the event loop that asks first."""
        async with self._opening:
            if self._writer is None and self._ended is None:
                reader, self._writer = await _streams(self._connection)
                self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        if self._ended is not None:
            raise self._ended

    def _send(self, order: Order, *arguments: object) -> None:
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(packed((order, *arguments)))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        error: Exception | None = None
        try:
            while error is None:
                size = int.from_bytes(await reader.readexactly(LENGTH), "big")
                message = pickle.loads(await reader.readexactly(size))
                if isinstance(message, News):
                    self._take(message)
                elif isinstance(message, EngineLook):
                    assert self._look is not None
                    self._look.set_result(message)
                else:
                    error = message
        except (asyncio.IncompleteReadError, OSError):
            pass  # the process has ended
        except Exception as unreadable:  # whatever it is, no one must wait for what will not come
            error = unreadable
        if error is None:
            await asyncio.to_thread(self._process.join, PATIENCE)
            error = self._dead()
        self._end(error)

    def _take(self, news: News) -> None:
        began = time.perf_counter()
        self._load = news.load
        for gained in news.gained:
            if (arriving := self._arriving.get(gained.request_id)) is not None:
                arriving.add(gained)
        for request_id, error in news.failures.items():
            if (arriving := self._arriving.get(request_id)) is not None:
                arriving.fail(error)
        if news.wants_ready:  # in line behind the readers, each of which has been woken
            asyncio.get_running_loop().call_soon(self._rest, began)

    def _rest(self, began: float) -> None:
        """The readers have written. Writing takes 1 / (1 + REST) of the time: the cores are needed for the steps."""
        seconds = min(REST * (time.perf_counter() - began), LONGEST_REST)
        asyncio.get_running_loop().call_later(seconds, self._send, Order.READY)

    def _end(self, error: Exception) -> None:
        self._ended = error
        for arriving in self._arriving.values():
            arriving.fail(error)
        if self._look is not None and not self._look.done():
            self._look.set_exception(error)
            self._look.exception()  # perhaps nobody waits for it any more

    def _dead(self, when: str = "") -> EngineDeadError:
        return EngineDeadError(
            f"the engine's process ended {when}".rstrip() + f", with exit status {self._process.exitcode}"
        )


async def _streams(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if hasattr(socket, "AF_UNIX") and connection.family == socket.AF_UNIX:
        return await asyncio.open_unix_connection(sock=connection)
    return await asyncio.open_connection(sock=connection)
