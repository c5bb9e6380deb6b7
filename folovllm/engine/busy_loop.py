"""The engine's busy loop: steps in a thread, and between two of them what clients have asked for.

    client        ADD b                         READY, 9 ms
                    ▼                               ▼
    loop's thread  add b ─ step ─ step ─ step ─ step ─ step ─ abort a ─ step
                             │                    │
    client                   ▼ token 1            ▼ tokens 2 to 4

No step waits for a client. In one process they share the interpreter, and in two the cores: a client that writes all
the time slows the steps. So it gets the next tokens of its streams after it has said READY, and that it says when its
readers have written what came last, together with how long it then rests: REST times as long as that took, and
LONGEST_REST at most. What the steps make meanwhile goes out as one piece. First outputs, last outputs and errors do not
wait. An output costs the loop time, too, for its text above all: none is made that the next step would replace.

vLLM: v1/engine/core.py (EngineCoreProc.run_busy_loop)
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from folovllm.engine.deltas import DeltaEncoder
from folovllm.engine.input_processor import Checked
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
from folovllm.engine.snapshots import load_of
from folovllm.outputs import RequestOutput

REST = 9
LONGEST_REST = 0.1  # seconds: a reader sees ten pieces a second at least


@dataclass(slots=True)
class _Stream:
    number: int
    encoder: DeltaEncoder | None


class BusyLoop:
    """`submit` and `close` are for any thread; all else belongs to the loop's.

    Args:
        send: takes EngineCoreOutputs, or the error that ended the engine. It raises OSError or RuntimeError where the
            client has gone: then its requests are aborted.
        deltas: send what each output gained, rather than everything so far.
    """

    def __init__(
        self, engine: LLMEngine, send: Callable[[EngineCoreOutputs | Exception], None], *, deltas: bool = False
    ) -> None:
        self.engine, self._send, self._deltas = engine, send, deltas
        self._due = 0.0  # when streams get their next outputs; without end until the client says READY
        self._lock = threading.Lock()  # of the next two
        self._calls: list[Callable[[], None]] = []
        self._runs = False
        self._streams: dict[str, _Stream] = {}  # unfinished requests by id; of these:
        self._at_end: set[str] = set()  # have one output, the last
        self._begun: set[str] = set()  # have had an output
        self._refused: list[tuple[int, RequestOutput | Exception]] = []
        self._load = load_of(engine)
        self._error: Exception | None = None  # after which there is no step
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="folovllm-step")
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="folovllm-compile")
        self._handlers: dict[EngineCoreRequestType, Callable[..., Any]] = {
            EngineCoreRequestType.ADD: self._add,
            EngineCoreRequestType.ABORT: self._abort,
            EngineCoreRequestType.RESET_PREFIX_CACHE: engine.reset_prefix_cache,
        }

    def submit(self, requests: Iterable[tuple[EngineCoreRequestType, tuple[Any, ...]]]) -> None:
        """Done before the next step, in their order; READY at once, for the step that runs counts already."""
        calls: list[Callable[[], None]] = []
        for kind, arguments in requests:
            if kind is EngineCoreRequestType.READY:
                self._due = time.perf_counter() + arguments[0]
            else:
                calls.append(partial(self._handlers[kind], *arguments))
        self._call(calls)

    def close(self) -> None:
        """Abort what is unfinished, and wait for the step that runs."""
        if not self._is_closed:
            self._is_closed = True
            self._call([self._abort_all])
            self._compiling.shutdown(wait=False, cancel_futures=True)
        self._thread.shutdown()

    def _call(self, calls: list[Callable[[], None]]) -> None:
        with self._lock:
            self._calls += calls
            if not calls or self._runs:
                return
            self._runs = True
        self._thread.submit(self._run)

    def _run(self) -> None:
        """Until there is nothing to do."""
        goes_on = True
        while goes_on:
            try:
                goes_on = self._obey()
                if goes_on and self._error is None:
                    began = time.perf_counter()
                    self.engine.advance()
                    self._hand_out(time.perf_counter() - began)
            except BaseException as error:  # whatever it is, no one must wait for what will not come
                self._error = error if isinstance(error, Exception) else RuntimeError(repr(error))
                self._deliver(self._error)

    def _obey(self) -> bool:
        """Returns False when nothing is left to do."""
        with self._lock:
            calls, self._calls = self._calls, []
            if not calls and (self._error is not None or not self.engine.has_unfinished_requests()):
                self._runs = False
                return False
        for call in calls:
            call()
        return True

    def _add(self, number: int, request: EngineCoreRequest) -> None:
        encoder = DeltaEncoder(request.params) if self._deltas else None
        self._streams[request.request_id] = _Stream(number, encoder)
        if request.final_only or (encoder is not None and encoder.is_whole):
            self._at_end.add(request.request_id)
        if isinstance(request.prompt, Checked):
            self._begin(number, request)
        else:  # a grammar is to be compiled: what may take seconds must not hold up a step
            self._compiling.submit(self._compile, number, request)

    def _compile(self, number: int, request: EngineCoreRequest) -> None:
        """In a thread. What it makes is kept, and add_request finds it, or meets the same error."""
        with suppress(Exception):
            self.engine.input_processor.grammars.compile(request.params.structured_outputs)  # type: ignore[arg-type]
        self._call([partial(self._begin, number, request)])

    def _begin(self, number: int, request: EngineCoreRequest) -> None:
        request_id = request.request_id
        if not self._is_open(number, request_id):
            return  # aborted meanwhile
        try:
            params = request.params_to_check()
            self.engine.add_request(request_id, request.prompt, params, priority=request.priority)
        except Exception as error:
            self._refused.append((number, error))
            self._forget(request_id)

    def _is_open(self, number: int, request_id: str) -> bool:
        return request_id in self._streams and self._streams[request_id].number == number

    def _abort(self, number: int, request_id: str) -> None:
        if self._is_open(number, request_id):
            self._forget(request_id)
            self.engine.abort_request(request_id)

    def _abort_all(self) -> None:
        for request_id, stream in list(self._streams.items()):
            self._abort(stream.number, request_id)

    def _forget(self, request_id: str) -> None:
        del self._streams[request_id]
        self._at_end.discard(request_id)
        self._begun.discard(request_id)

    def _hand_out(self, seconds: float) -> None:
        """What the engine has made goes to the client. `seconds`: of the step, and probably of the next one."""
        rests = self._due > time.perf_counter() + seconds
        outputs, failures = self.engine.drain(self._at_end | self._begun if rests else self._at_end)
        sent, self._refused, wants_ready = self._refused, [], False
        for output in outputs:
            if (stream := self._streams.get(request_id := output.request_id)) is None:
                continue  # a request that came otherwise
            wants_ready = wants_ready or (request_id in self._begun and not output.finished)
            self._begun.add(request_id)
            sent.append((stream.number, output if stream.encoder is None else stream.encoder.encode(output)))
            if output.finished:
                self._forget(request_id)
        for request_id, error in failures.items():
            if request_id in self._streams:
                sent.append((self._streams[request_id].number, error))
                self._forget(request_id)
        load = load_of(self.engine)
        if sent or load != self._load:
            self._load = load
            if wants_ready:
                self._due = math.inf
            self._deliver(EngineCoreOutputs(load, sent, wants_ready))

    def _deliver(self, message: EngineCoreOutputs | Exception) -> None:
        try:
            self._send(message)
        except (OSError, RuntimeError):  # the client has gone: no one waits any more
            self._abort_all()
