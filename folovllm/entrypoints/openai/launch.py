"""From a command line to a server that runs: the engine, the start line, the socket, and an orderly end.

    SIGTERM ─▶ nothing more is taken (503, the socket is closed) ─▶ what runs is finished ─▶ the engine ends

vLLM: entrypoints/launchers/launcher.py
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from rich.console import Console
from rich.text import Text

from folovllm.config import EMBEDDED_MODEL
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints.clients.async_llm import AsyncLLM
from folovllm.entrypoints.clients.engine_client import EngineClient
from folovllm.entrypoints.openai.app import make_app
from folovllm.entrypoints.openai.ceilings import Ceilings
from folovllm.entrypoints.openai.heads import TimedH11, is_loopback


@dataclass
class ServerOptions:
    """What the server itself is told; the engine's options are beside them."""

    model: str = EMBEDDED_MODEL
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: list[str] = field(default_factory=list)
    max_queue: int = 1024
    ceilings: Ceilings = field(default_factory=Ceilings)
    salt_by_key: bool = False
    generation_config: str = "auto"
    trust_chat_template: bool = False
    allowed_hosts: list[str] = field(default_factory=list)


class DrainingServer(uvicorn.Server):
    """uvicorn's server finishes what runs before it ends. Besides, requests on connections that are open already are
    told to go elsewhere, and streams without an end are ended. A second signal closes the connections: what runs for
    them is dropped, as for clients that leave, and the exit status is the signal's."""

    exit_status = 0

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
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
        self.gate.draining = self.should_exit = True

    def _cut_off(self) -> None:
        for connection in self.server_state.connections:
            cast(TimedH11, connection).transport.abort()


def serve(options: ServerOptions, engine_options: dict[str, Any], notes: Console) -> int:
    """Until a signal ends it; `notes` gets the start line.

    Raises:
        OSError: the address is taken. Then no model has been loaded.
    """
    listener = listen(options.host, options.port)
    with listener:
        host, port = listener.getsockname()[:2]
        with notes.status(f"loading {options.model} …"):
            llm = AsyncLLM(options.model, **engine_options)
        app = app_for(options, llm)
        _say_where(notes, options, llm, app.state.serving.defaults, host, port)
        return run_app(app, listener)


def app_for(options: ServerOptions, llm: EngineClient) -> FastAPI:
    return make_app(
        llm,
        options.served_model_name or options.model,
        api_keys=options.api_keys,
        max_queue=options.max_queue,
        ceilings=options.ceilings,
        salt_by_key=options.salt_by_key,
        generation_config=options.generation_config,
        trust_chat_template=options.trust_chat_template,
        allowed_hosts=_hosts(options),
    )


def _hosts(options: ServerOptions) -> list[str] | None:
    """Whom the browser of someone on this machine may be led to ask for. With a key, or on an address that others may
    reach by any name, only a list that was given is held to."""
    if options.allowed_hosts or (not options.api_keys and is_loopback(options.host)):
        return [options.host, *options.allowed_hosts]
    return None


def run_app(app: FastAPI, listener: socket.socket) -> int:
    """Until a signal ends it: the exit status."""
    server = make_server(app)
    gc.freeze()  # what lives as long as the server is not walked again: it took 0.2 s, with the interpreter held
    server.run(sockets=[listener])
    return server.exit_status


@contextmanager
def in_thread(engine: LLMEngine) -> Iterator[str]:
    """A server around an engine that exists, in a thread of this process, on a port that is free: its address.

    For measurements and tests. The caller may use the engine where no request runs.
    """
    llm = cast("AsyncLLM", AsyncLLM.from_engine(engine))
    app = make_app(llm, engine.config.model_config.model)
    with listen("127.0.0.1", 0) as listener:
        server = make_server(app)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def make_server(app: FastAPI) -> DrainingServer:
    """uvicorn takes uvloop where it is installed. It would take httptools, too, and with that it answers HTTP/1.0 in
    chunks, which such a client cannot read (uvicorn 0.54); its answers come whole with h11."""
    return DrainingServer(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", http=TimedH11), app)


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by its name: asyncio sets TCP_NODELAY only where a socket tells it. Without that, the first event of
    # an answer waits for the client to acknowledge the head, which on a connection used before takes it 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise OSError(f"--host and --port must be an address that is free here, got {host}:{port}: {error}") from error
    return listener


def _say_where(
    notes: Console, options: ServerOptions, llm: AsyncLLM, defaults: dict[str, Any], host: str, port: int
) -> None:
    engine = llm.engine
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    pool = engine.scheduler.kv.pool
    room = pool.num_blocks * engine.scheduler.kv.block_size
    notes.print(
        Text.assemble(
            ("FoloVLLM ", "bold"),
            "serves ",
            (options.served_model_name or options.model, "bold"),
            " at ",
            (address, "bold cyan"),
            f" · {engine.device}, {str(engine.dtype).removeprefix('torch.')} · KV cache of {pool.num_blocks:,} blocks, "
            f"{room:,} tokens · up to {engine.max_model_len:,} tokens a sequence",
        )
    )
    if defaults:
        text = ", ".join(f"{name}={value}" for name, value in defaults.items())
        notes.print(f"sampling defaults of its generation_config.json: {text}", style="dim")
    warn_if_open(notes, options)


def warn_if_open(notes: Console, options: ServerOptions) -> None:
    if not options.api_keys and not is_loopback(options.host):
        notes.print(
            Text(f"{options.host} is open to other machines, and no --api-key is asked for: anyone there may use it"),
            style="yellow",
        )
