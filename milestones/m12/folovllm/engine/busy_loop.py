"""The core's busy loop: steps in a thread, and between two of them what a client has asked for.

    client        ADD b                                     ABORT a
                    ▼                                          ▼
    loop's thread  add b ─ step ─ step ─ step ─ step ─ step ─ abort a ─ step
                             │      │      │      │      │                │
    client                   ▼      ▼      ▼      ▼      ▼  new tokens    ▼

No step waits for a client, and each sends one message.

vLLM: v1/engine/core.py (EngineCoreProc.run_busy_loop)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from folovllm.engine.core import EngineCore
from folovllm.engine.input_processor import InputProcessor, ProcessedInputs
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType, SchedulerStats
from folovllm.lora.request import LoRAModel


class BusyLoop:
    """`submit` and `close` are for any thread; all else belongs to the loop's.

    Args:
        send: takes EngineCoreOutputs, or the error that ended the engine. It raises OSError or RuntimeError where the
            client has gone: then its requests are aborted.
    """

    def __init__(
        self, core: EngineCore, input_processor: InputProcessor, send: Callable[[EngineCoreOutputs | Exception], None]
    ) -> None:
        self.core, self._input_processor, self._send = core, input_processor, send
        self._lock = threading.Lock()  # of the next two
        self._calls: list[Callable[[], None]] = []
        self._runs = False
        self._to_compile: set[int] = set()  # requests, by key, that wait for their grammar or their adapter
        self._error: Exception | None = None  # after which there is no step
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="folovllm-step")
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="folovllm-compile")
        self._handlers: dict[EngineCoreRequestType, Callable[..., Any]] = {
            EngineCoreRequestType.ADD: self._add,
            EngineCoreRequestType.ABORT: self._abort,
            EngineCoreRequestType.RESET_PREFIX_CACHE: core.scheduler.kv.reset_prefix_cache,
        }

    def submit(self, requests: Iterable[tuple[EngineCoreRequestType, tuple[Any, ...]]]) -> None:
        """Done before the next step, in their order."""
        self._call([partial(self._handlers[kind], *arguments) for kind, arguments in requests])

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
                    self._deliver(self.core.step())
            except BaseException as error:  # whatever it is, no one must wait for what will not come
                self._error = error if isinstance(error, Exception) else RuntimeError(repr(error))
                self._deliver(self._error)

    def _obey(self) -> bool:
        """Returns False when nothing is left to do."""
        with self._lock:
            calls, self._calls = self._calls, []
            if not calls and (self._error is not None or not self.core.requests):
                self._runs = False
                return False
        for call in calls:
            call()
        return True

    def _add(self, request: EngineCoreRequest) -> None:
        lora = request.lora_request
        is_read = lora is None or self._input_processor.lora_loader.has(lora)
        if is_read and isinstance(request.prompt, ProcessedInputs):
            self._begin(request)
        else:  # a grammar is to be compiled, or an adapter read: what may take seconds must not hold up a step
            self._to_compile.add(request.key)
            self._compiling.submit(self._compile, request)

    def _compile(self, request: EngineCoreRequest) -> None:
        """In a thread. What it makes is kept, and the input processor finds it, or meets the same error."""
        adapter = None
        with suppress(Exception):
            if request.lora_request is not None:
                adapter = self._input_processor.lora_loader.load(request.lora_request)
            if not isinstance(request.prompt, ProcessedInputs):
                self._input_processor.grammars.compile(request.params.structured_outputs)  # type: ignore[arg-type]
        self._call([partial(self._begin_compiled, request, adapter)])

    def _begin_compiled(self, request: EngineCoreRequest, adapter: LoRAModel | None) -> None:
        """adapter: held until here, since the loader keeps what it has read only as long as somebody has it."""
        if request.key in self._to_compile:  # it has not been aborted meanwhile
            self._to_compile.remove(request.key)
            self._begin(request)

    def _begin(self, request: EngineCoreRequest) -> None:
        params = None if isinstance(request.prompt, ProcessedInputs) else request.params  # checked with the prompt
        asked = request.request_id, request.prompt, params, request.priority, request.key, request.lora_request
        try:
            made = self._input_processor.process(*asked)
        except Exception as error:
            self._deliver(EngineCoreOutputs(failures={request.key: error}))
        else:
            self.core.abort_request(request.request_id)  # the one before of this id, whose own abort is on its way
            self.core.add_request(made)

    def _abort(self, key: int, request_id: str, index: int | None = None) -> None:
        self._to_compile.discard(key)
        request = self.core.requests.get(request_id)
        if request is not None and request.key == key:  # its id may have been used again
            self.core.abort_request(request_id, index)

    def _abort_all(self) -> None:
        self._to_compile.clear()
        for request_id in list(self.core.requests):
            self.core.abort_request(request_id)

    def _deliver(self, message: EngineCoreOutputs | Exception) -> None:
        if isinstance(message, EngineCoreOutputs):
            message.scheduler_stats = SchedulerStats.of(self.core.scheduler)
        try:
            self._send(message)
        except (OSError, RuntimeError):  # the client has gone: no one waits any more
            self._abort_all()
