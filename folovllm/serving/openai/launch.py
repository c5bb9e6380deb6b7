"""The HTTP server's life: the engine's start, the socket, the start line, and a graceful shutdown.

    SIGTERM ─▶ nothing more is taken (503, the socket is closed) ─▶ what runs is finished ─▶ the engine ends

vLLM: entrypoints/launchers/launcher.py
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import cast

import h11
import uvicorn
from fastapi import FastAPI
from rich.console import Console
from rich.text import Text
from uvicorn.protocols.http.h11_impl import H11Protocol

from folovllm.entrypoints.commands import waiting
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.mp_client import MPClient
from folovllm.serving.openai.app import make_app
from folovllm.serving.openai.middleware import is_loopback
from folovllm.serving.openai.options import ServerOptions

LAST_SECONDS = 5.0
"""From the second signal to the end of the process, whatever it waits for."""
READ_SECONDS = 60.0
"""From a request's first byte, or from the connection, to the end of its body."""


class TimedH11(H11Protocol):
    """uvicorn's connection, which is closed when a request does not come to its end in time. uvicorn itself limits the
    pause between two requests alone."""

    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False  # a line when the answer begins; CallerMiddleware writes one when it has ended
        self._begin()

    def data_received(self, data: bytes) -> None:
        self._begin()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):  # all of the request is here
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        if self._reading is None:
            self._reading = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def _end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


class DrainingServer(uvicorn.Server):
    """uvicorn's server finishes what runs before it ends. Besides, requests on connections that are open already are
    answered with 503, and streams without an end are ended. A second signal ends everything: the connections are
    closed, `kill` ends an engine elsewhere, and the exit status is the signal's."""

    exit_status = 0

    def __init__(self, config: uvicorn.Config, app: FastAPI, kill: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self.kill, self.is_alone = kill, False
        """is_alone: the process is the server's, and may be ended with it."""
        self.gate = app.state.serving.gate
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own: it would raise the signal anew at the end, and an orderly end is no failure.
        if self.gate.draining and self._loop is not None:
            self.exit_status = 128 + sig  # as a shell reports it
            self._loop.call_soon_threadsafe(self._cut_off)
            if self.is_alone:  # not in the event loop, which may be what hangs
                last = threading.Timer(LAST_SECONDS, self._end_at_once)
                last.daemon = True
                last.start()
        self.gate.draining = self.should_exit = True

    def _end_at_once(self) -> None:
        self.kill()
        os._exit(self.exit_status)

    def _cut_off(self) -> None:
        for connection in self.server_state.connections:
            cast(TimedH11, connection).transport.abort()
        self.kill()


def serve(options: ServerOptions, engine: EngineProcess, notes: Console) -> int:
    """Until a signal ends it: the exit status. `notes` gets the start line.

    Raises:
        OSError: the address is taken.
    """
    with listen(options.host, options.port, options.uds) as listener:
        with waiting(f"loading {options.model} …", notes):
            llm = MPClient(engine)
        facts, cache = llm.engine.facts, llm.engine.config.cache_config
        groups, num_blocks = llm.engine.config.kv_cache_groups, cache.num_kv_blocks or 0
        tokens = f", {num_blocks * cache.block_size:,} tokens" if groups.windows == (None,) else ""
        said = [
            f"{facts.device}, {facts.dtype}",
            f"KV cache of {num_blocks:,} blocks{tokens}",
            f"up to {llm.engine.max_model_len:,} tokens a sequence",
        ]
        app = make_app(llm, options)
        say_where(notes, options, listener, said)
        if defaults := app.state.serving.defaults:
            text = ", ".join(f"{name}={value}" for name, value in defaults.items())
            notes.print(f"sampling defaults of its generation_config.json: {text}", style="dim")
        status = run_app(app, listener, engine.process.kill)
    if engine.trace is not None and engine.process.exitcode:
        return status or 2  # the process has said what the trace lacks
    if engine.trace is not None:
        notes.print(f"traced: {engine.trace} · folovllm trace view {engine.trace}", style="dim", markup=False)
    return status


def say_where(notes: Console, options: ServerOptions, listener: socket.socket, facts: list[str]) -> None:
    listener.listen(2048)  # as uvicorn does: who reads the line may connect, and waits until the event loop runs
    scheme = "http" if options.ssl_certfile is None else "https"
    if options.uds is None:
        host, port = listener.getsockname()[:2]
        address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    else:
        address = f"{scheme}+unix://{options.uds}"
    parts = ("FoloVLLM ", "bold"), "serves ", (", ".join(options.names), "bold"), " at ", (address, "bold cyan")
    notes.print(Text.assemble(*parts, *(f" · {fact}" for fact in facts)))
    if not options.api_keys and options.uds is None and not is_loopback(options.host):
        notes.print(
            Text(f"{options.host} is open to other machines, and no --api-key is asked for: anyone there may use it"),
            style="yellow",
        )


def run_app(app: FastAPI, listener: socket.socket, kill: Callable[[], None] = lambda: None) -> int:
    """Until a signal ends it: the exit status. `kill` ends an engine elsewhere, at once."""
    server = make_server(app, kill)
    server.is_alone = True
    gc.freeze()  # what lives as long as the server is not walked again: it took 0.2 s, with the interpreter held
    server.run(sockets=[listener])
    return server.exit_status


def make_server(app: FastAPI, kill: Callable[[], None] = lambda: None) -> DrainingServer:
    """uvicorn takes uvloop where it is installed. It would take httptools, too, and with that it answers HTTP/1.0 in
    chunks, which such a client cannot read (uvicorn 0.54); its answers come whole with h11."""
    options: ServerOptions = app.state.options
    config = uvicorn.Config(
        app,
        log_level=options.uvicorn_log_level,
        log_config=options.log_config_file,
        access_log=options.logs_access,
        lifespan="on",
        http=TimedH11,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
    )
    return DrainingServer(config, app, kill)


@contextmanager
def listen(host: str, port: int, uds: str | None = None) -> Iterator[socket.socket]:
    """uds: path of a Unix socket, instead of both; the file goes when the socket does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by its name: asyncio sets TCP_NODELAY only where a socket names it. Without that, the first event of
    # an answer waits for the client to acknowledge the head, which on a connection used before takes it 40 ms.
    kind = (family, socket.SOCK_STREAM, socket.IPPROTO_TCP) if uds is None else (socket.AF_UNIX, socket.SOCK_STREAM)
    with socket.socket(*kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port) if uds is None else uds)
        except (OSError, OverflowError) as error:
            what = f"--host and --port must be an address that is free here, got {host}:{port}"
            what = what if uds is None else f"--uds must be a path where no file is yet, got {uds!r}"
            raise OSError(f"{what}: {error}") from error
        try:
            yield listener
        finally:
            if uds is not None:
                Path(uds).unlink(missing_ok=True)
