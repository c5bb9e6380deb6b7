"""An engine in a process of its own: the steps, and between two of them what the front has asked for.

    front's process                     engine's process
    event loop ── ADD a, ABORT b ─────▶ reader thread ─▶ inbox ─┐
       ▲                                                        ▼
       └────────────── News: tokens ◀── what is due ◀── step ◀──┘

The two share no interpreter lock: what the event loop does for its clients costs the steps nothing. Here nothing waits
for the front. It says READY when its readers have what came last; until then streams wait, and several steps' tokens go
out as one. First outputs, last outputs and errors are sent at once. The end of the connection is the end of this
process, so none is left behind when the front is killed.

vLLM: v1/engine/core.py (EngineCoreProc), v1/engine/__init__.py (EngineCoreRequestType)
"""

from __future__ import annotations

import gc
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from queue import SimpleQueue
from typing import Any

from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.looks import Load, load_of, look_at
from folovllm.outputs import RequestOutput
from folovllm.serving.front_engine import RemoteFacts
from folovllm.serving.wire import Ask, Shrinking
from folovllm.structured_outputs import StructuredOutputsParams
from folovllm.tracing.attach import Attach, make_engine

LENGTH = 8  # bytes before each message, that say how long it is


class Order(Enum):
    """What the front may say, each with one argument."""

    ADD = auto()  # an Ask, and whether only its last output is wanted
    ABORT = auto()  # a request's id
    READY = auto()  # for the next outputs of streams
    RESET_PREFIX_CACHE = auto()
    LOOK = auto()


@dataclass(frozen=True, slots=True)
class News:
    """What came of a step. `wants_ready`: streams wait until the front says READY."""

    load: Load
    gained: list[RequestOutput] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)
    wants_ready: bool = False


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
    """The error, or what can be said of it where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def run_engine(connection: socket.socket, model: str, options: dict[str, Any], observers: Sequence[Attach]) -> None:
    """All of the process. First it sends RemoteFacts, or the error that kept the engine from being made."""
    # Signals are the front's: it lets what runs come to its end, here too, and then closes the connection.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    try:
        engine, _ = make_engine(
            lambda: LLMEngine(config_for_llm(model, **options)), None, texts=False, observers=observers
        )
    except Exception as error:
        connection.sendall(packed(portable(error)))
        return
    connection.sendall(packed(RemoteFacts.of(engine)))
    gc.freeze()  # the model is not walked again
    EngineProc(engine, connection).run()


class EngineProc:
    """`run` is the process's loop; what it works on, no other thread touches."""

    def __init__(self, engine: LLMEngine, connection: socket.socket) -> None:
        self.engine, self.connection = engine, connection
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._asked: dict[str, Shrinking] = {}  # unfinished; of these:
        self._at_end: set[str] = set()  # have one output, the last
        self._begun: set[str] = set()  # have had an output
        self._is_ready = True
        self._failures: dict[str, Exception] = {}
        self._told = load_of(engine)
        self._sending = threading.Lock()
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="folovllm-compile")

    def run(self) -> None:
        """Until the front has gone, or the engine fails: then the error is the last that is sent."""
        threading.Thread(target=self._read, daemon=True, name="folovllm-read").start()
        try:
            while self._obey():
                self.engine.advance()
                self._hand_out()
        except Exception as error:
            self._send(portable(error))
        finally:
            self._compiling.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> None:
        """A thread: the front can always send. A look is answered here, for it need not wait for a step."""
        orders: dict[Order, Callable[..., None]] = {
            Order.ADD: self._add,
            Order.ABORT: self._abort,
            Order.READY: self._ready,
            Order.RESET_PREFIX_CACHE: self.engine.reset_prefix_cache,
        }
        try:
            while True:
                order, *arguments = read(self.connection)
                if order is Order.LOOK:
                    self._send(look_at(self.engine))
                else:
                    self._inbox.put(partial(orders[order], *arguments))
        except EOFError:
            self._inbox.put(None)

    def _obey(self) -> bool:
        """Do what has been asked for; wait where nothing else is to do. Returns whether the front is still there."""
        waits = not self.engine.has_unfinished_requests()
        while waits or not self._inbox.empty():
            command = self._inbox.get()
            if command is None:
                return False
            command()
            waits = False
        return True

    def _add(self, ask: Ask, final_only: bool) -> None:
        asked = self._asked[ask.request_id] = Shrinking(ask.params)
        if final_only or asked.is_whole:
            self._at_end.add(ask.request_id)
        if ask.params.structured_outputs is None:
            self._begin(ask, asked)
        else:  # what may take seconds must not hold up a step
            self._compiling.submit(self._compile, ask.params.structured_outputs, partial(self._begin, ask, asked))

    def _compile(self, form: StructuredOutputsParams, then: Callable[[], None]) -> None:
        """In a thread. What it makes is kept, and add_request finds it, or meets the same error."""
        with suppress(Exception):
            self.engine.input_processor.grammars.compile(form)
        self._inbox.put(then)

    def _begin(self, ask: Ask, asked: Shrinking) -> None:
        if self._asked.get(ask.request_id) is not asked:
            return  # aborted before it began
        try:
            self.engine.add_request(ask.request_id, *ask.given(), priority=ask.priority)
        except Exception as error:
            self._failures[ask.request_id] = error

    def _abort(self, request_id: str) -> None:
        self._forget(request_id)
        self.engine.abort_request(request_id)

    def _forget(self, request_id: str) -> None:
        self._asked.pop(request_id, None)
        self._at_end.discard(request_id)
        self._begun.discard(request_id)

    def _ready(self) -> None:
        self._is_ready = True

    def _hand_out(self) -> None:
        outputs, failures = self.engine.drain(self._at_end if self._is_ready else self._at_end | self._begun)
        failures, self._failures = failures | self._failures, {}
        gained = [self._asked[output.request_id].cut(output) for output in outputs]
        wants_ready = any(each.request_id in self._begun and not each.finished for each in gained)
        self._begun.update(each.request_id for each in gained)
        for request_id in [*failures, *(each.request_id for each in gained if each.finished)]:
            self._forget(request_id)
        load = load_of(self.engine)
        if gained or failures or load != self._told:
            self._told = load
            self._is_ready = self._is_ready and not wants_ready
            self._send(News(load, gained, {name: portable(error) for name, error in failures.items()}, wants_ready))

    def _send(self, message: object) -> None:
        data = packed(message)
        with suppress(OSError), self._sending:  # where the front has gone, the reader finds it, too
            self.connection.sendall(data)
