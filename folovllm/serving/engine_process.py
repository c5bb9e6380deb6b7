"""The process of an engine: how it is started, what it reads and writes, and what runs in it.

    client's process                      engine's process
    MPClient ── ADD a, ABORT b ─────────▶ main thread ─▶ BusyLoop: step ─ step ─ …
        ▲                                                   │
        └────────────── EngineCoreOutputs ◀─────────────────┘

The two share no interpreter lock: text, and what the event loop does for its clients, costs the steps nothing. The end
of the connection is the end of this process, so none is left behind when the other is killed. Nothing heavy is imported
at the top: the process imports torch and loads the model while the client imports what it needs itself.

vLLM: v1/engine/core.py (EngineCoreProc), v1/engine/utils.py (CoreEngineProcManager)
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from folovllm.distributed.forks import keep_from_forks

if TYPE_CHECKING:
    from folovllm.engine.llm_engine import LLMEngine
    from folovllm.serving.logs import LogFormat

LENGTH = 8  # bytes before each message, that say how long it is


class EngineProcess:
    """It belongs to this object: it ends with close(), with Python, or when this process is killed.

    Args: as for AsyncLLM; observers are shown the engine in its process, so each must be a function that a module has.
        The trace is written there, too, and is whole when the process has ended with status 0. log_format: how the
        process writes its log; None: as this package does.
    """

    def __init__(
        self,
        model: str,
        *,
        trace: str | None = None,
        trace_texts: bool = False,
        nvtx: bool = False,
        observers: Sequence[Any] = (),
        log_format: LogFormat | None = None,
        **options: Any,
    ) -> None:
        self.trace = trace
        self.is_ours = True
        """False: this is a fork of the process that started it."""
        self.connection, theirs = socket.socketpair()
        recording = {"trace": trace, "texts": trace_texts, "nvtx": nvtx, "observers": observers}
        # Not a fork: torch's threads and CUDA do not live on in one.
        self.process = multiprocessing.get_context("spawn").Process(
            target=_main, args=(log_format, theirs, model, options, recording), name="folovllm-engine", daemon=True
        )
        self.process.start()
        theirs.close()
        atexit.register(self.process.kill)
        keep_from_forks(self)

    def forked(self, error: Exception) -> None:
        self.is_ours = False
        self.connection.close()
        atexit.unregister(self.process.kill)
        multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]  # it would end them

    def close(self) -> None:
        """End it, whatever it is doing."""
        if not self.is_ours:
            return
        atexit.unregister(self.process.kill)
        self.connection.close()
        self.process.kill()
        self.process.join()


def packed(message: object) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH, "big") + body


def read(connection: socket.socket) -> Any:
    """The next message. Raises EOFError: the other side has gone."""
    return pickle.loads(_read_exactly(connection, int.from_bytes(_read_exactly(connection, LENGTH), "big")))


def _read_exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray()
    with suppress(OSError):  # a signal may cut one recv() short
        while len(data) < count and (part := connection.recv(count - len(data), socket.MSG_WAITALL)):
            data += part
    if len(data) < count:
        raise EOFError("the other side has gone")
    return data


def portable(error: Exception) -> Exception:
    """The error, or what can be said of it where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _main(log_format: LogFormat | None, *arguments: Any) -> None:
    from folovllm.serving.logs import logging_as

    with nullcontext() if log_format is None else logging_as(log_format):
        _run(*arguments)


def _run(connection: socket.socket, model: str, options: dict[str, Any], recording: dict[str, Any]) -> None:
    """All of the process. First it sends ReadyResponse, or the error that kept the engine from being made."""
    from folovllm.engine.builder.defaults import config_for_llm
    from folovllm.engine.llm_engine import LLMEngine  # loads torch
    from folovllm.engine.messages import ReadyResponse
    from folovllm.tracing.attach import TraceFile
    from folovllm.tracing.nvtx import attach_nvtx

    # Signals are the client's: it lets what runs come to its end, here too, and then closes the connection.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    try:
        trace = None if recording["trace"] is None else TraceFile(recording["trace"], texts=recording["texts"])
        engine = LLMEngine(config_for_llm(model, **options))
        for observe in filter(None, (attach_nvtx if recording["nvtx"] else None, *recording["observers"], trace)):
            observe(engine)
    except Exception as error:
        connection.sendall(packed(portable(error)))
        return
    connection.sendall(packed(ReadyResponse.of(engine)))
    gc.freeze()  # the model is not walked again
    serve_engine(engine, connection)
    if trace is not None:
        trace.close()
        try:
            trace.writer.check_whole()
        except ValueError as error:
            sys.exit(f"error: {error}")


def serve_engine(engine: LLMEngine, connection: socket.socket) -> None:
    """Until the client has gone, or the engine fails: then the error is the last that is sent."""
    from folovllm.engine.busy_loop import BusyLoop
    from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequestType
    from folovllm.engine.snapshots import snapshot_of

    sending = threading.Lock()

    def send(message: Any) -> None:
        if isinstance(message, EngineCoreOutputs):
            message.failures = {key: portable(error) for key, error in message.failures.items()}
        data = packed(portable(message) if isinstance(message, Exception) else message)
        with sending:
            connection.sendall(data)
        if isinstance(message, Exception):
            connection.shutdown(socket.SHUT_RD)  # nothing more is read

    loop = BusyLoop(engine.core, engine.input_processor, send)
    with suppress(EOFError, OSError):
        while True:
            kind, *arguments = read(connection)
            if kind is EngineCoreRequestType.SNAPSHOT:
                send(snapshot_of(engine))  # which need not wait for a step
            else:
                loop.submit([(kind, tuple(arguments))])
    loop.close()
