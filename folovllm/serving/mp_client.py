"""MPClient: the client of an engine in a process. shutdown() ends the process. If it dies by itself, every request ends
in EngineDeadError, and nothing more is taken.

vLLM: v1/engine/core_client.py (AsyncMPClient)
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from typing import Any

from folovllm.config import ModelConfig
from folovllm.engine.engine_client import EngineClient
from folovllm.engine.input_processor import InputProcessor
from folovllm.engine.messages import EngineCoreRequest, EngineCoreRequestType, ReadyResponse
from folovllm.engine.snapshots import EngineSnapshot
from folovllm.errors import EngineDeadError
from folovllm.model_loader import load_tokenizer
from folovllm.serving.engine_process import LENGTH, EngineProcess, packed, read

SNAPSHOT_SECONDS = 2.0
"""That /metrics and the page wait for a snapshot."""
LAST_SECONDS = 30.0
"""That the process has for the step that runs when it is to end."""


class RemoteEngine:
    """What a client has of an engine elsewhere: facts, and a tokenizer."""

    def __init__(self, facts: ReadyResponse) -> None:
        self.facts, self.config = facts, facts.config
        self.model_config: ModelConfig = facts.config.model_config
        self.tokenizer = None if self.model_config.skip_tokenizer_init else load_tokenizer(self.model_config)
        self.input_processor = InputProcessor(self.tokenizer, facts.vocab_size, facts.config)
        self.max_model_len = self.input_processor.max_model_len


class MPClient(EngineClient):
    """Of the engine that `process` makes.

    Raises: as AsyncLLM does. EngineDeadError: the process ended while the model was being loaded.
    """

    engine: RemoteEngine

    def __init__(self, process: EngineProcess) -> None:
        self._engine, self._process, self._connection = process, process.process, process.connection
        try:
            facts = read(self._connection)
            if isinstance(facts, Exception):
                raise facts
            super().__init__(RemoteEngine(facts))
        except EOFError:
            self._process.join()
            raise self._dead("before it was ready") from None
        except BaseException:
            process.close()
            raise
        self._snapshot: asyncio.Future[EngineSnapshot] | None = None  # the newest, for all who ask before it is here
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    @property
    def is_closed(self) -> bool:
        return super().is_closed or not self._process.is_alive()

    async def snapshots(self) -> list[EngineSnapshot]:
        """Raises EngineDeadError; TimeoutError: the process does not answer."""
        await self._open()
        if self._snapshot is None or self._snapshot.done():
            self._snapshot = asyncio.get_running_loop().create_future()
            self._send(EngineCoreRequestType.SNAPSHOT)
        snapshot = self._snapshot
        await asyncio.wait([snapshot], timeout=SNAPSHOT_SECONDS)
        if not snapshot.done():
            raise TimeoutError(f"the engine has not answered for {SNAPSHOT_SECONDS:g} s: try again")
        return [snapshot.result()]

    async def shutdown(self) -> None:
        """Ends the process."""
        if self._forked is not None:
            return
        self._shut_down()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        self._connection.close()
        await asyncio.to_thread(self._process.join, LAST_SECONDS)
        self._engine.close()

    async def _open(self) -> None:
        """The connection belongs to the event loop that asks first."""
        async with self._opening:
            if self._writer is None and self._ended is None:
                reader, self._writer = await _streams(self._connection)
                self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        if self._ended is not None:
            raise self._ended

    def _send(self, kind: EngineCoreRequestType, *arguments: Any) -> None:
        assert self._writer is not None
        if not self._writer.is_closing():
            sent = [each.portable() if isinstance(each, EngineCoreRequest) else each for each in arguments]
            self._writer.write(packed((kind, *sent)))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while self._ended is None:
                size = int.from_bytes(await reader.readexactly(LENGTH), "big")
                message = pickle.loads(await reader.readexactly(size))
                if isinstance(message, EngineSnapshot):
                    assert self._snapshot is not None
                    self._snapshot.set_result(message)
                else:
                    self.receive(message)
        except (asyncio.IncompleteReadError, OSError):  # the process has ended
            await asyncio.to_thread(self._process.join, LAST_SECONDS)
            self._end(self._dead())
        except Exception as unreadable:  # whatever it is, no one must wait for what will not come
            self._end(unreadable)

    def _end(self, error: Exception) -> None:
        super()._end(error)
        if self._snapshot is not None and not self._snapshot.done():
            self._snapshot.set_exception(error)
            self._snapshot.exception()  # perhaps nobody waits for it any more

    def _dead(self, when: str = "") -> EngineDeadError:
        return EngineDeadError(
            f"the engine's process ended {when}".rstrip() + f", with exit status {self._process.exitcode}"
        )


async def _streams(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if hasattr(socket, "AF_UNIX") and connection.family == socket.AF_UNIX:
        return await asyncio.open_unix_connection(sock=connection)
    return await asyncio.open_connection(sock=connection)
