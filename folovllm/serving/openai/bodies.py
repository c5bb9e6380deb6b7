"""Request bodies: from bytes to the fields of a request, at a bounded cost.

    bytes ─▶ how many ─▶ queue ─▶ JSON ─▶ types, and how many entries ─▶ the route
             (while they come)     └──── beside the event loop ────┘

Each step is cheap for what the steps before let through. Decoding takes tens of milliseconds for the largest body, and
of a list that is too long pydantic looks at no more entries than it may have.

vLLM: none
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json

from folovllm.serving.logs import caller
from folovllm.serving.openai.errors import APIError, refused
from folovllm.serving.openai.gate import Gate
from folovllm.serving.openai.protocol import Pooling, Sampling
from folovllm.utils.checks import describe
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

NESTING = 200
"""How deep lists and objects may be nested. It is the decoder's, so it is no limit that can be changed."""
MAX_NAMED = 100  # names that the log may have, whatever clients send
_SMALL = 16 * 2**10  # decoded in less time than it takes to wake another thread


class Bodies:
    """Reads what comes to the routes of an application."""

    def __init__(self, max_bytes: int, gate: Gate, *, warns: bool = False) -> None:
        """warns: a field that nobody knows is left out, with a line in the log; else it is refused."""
        self.max_bytes, self.gate, self.warns = max_bytes, gate, warns
        self._named: set[str] = set()
        # One thread: however many large bodies come at a time, the interpreter is held by one of them.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="folovllm-decode")

    async def read(self, request: Request) -> bytes:
        """Raises APIError: 413 as soon as the body is known to be too large."""
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.max_bytes:
            raise self._too_large()
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self.max_bytes:
                raise self._too_large()
            pieces.append(piece)
        return b"".join(pieces)

    async def decode(self, body: bytes, kind: type[BaseModel]) -> BaseModel:
        """Raises APIError: 400 for a body that is wrong, 429 and 503 as the gate."""
        with self.gate.admit(1):
            if len(body) <= _SMALL:
                return self._decode(body, kind)
            run = asyncio.get_running_loop().run_in_executor
            return await run(self._thread, copy_context().run, self._decode_large, body, kind)

    def _decode_large(self, body: bytes, kind: type[BaseModel]) -> BaseModel:
        # A million lists in one list have no cycles to be found. Looking for them, again and again and through all that
        # the process holds, took ten times as long as decoding, and holds the interpreter.
        gc.disable()
        try:
            return self._decode(body, kind)
        finally:
            gc.enable()

    def _decode(self, body: bytes, kind: type[BaseModel]) -> BaseModel:
        try:
            found = check_json("the body", body)
            return kind.model_validate(found, context=self._leave_out if self.warns else None)
        except ValueError as error:
            raise refused(error) from None

    def _leave_out(self, name: str) -> None:
        if name not in self._named and len(self._named) < MAX_NAMED:
            self._named.add(name)
            logger.warning("a request has the field %s, which is not known here and left out", describe(name))

    def _too_large(self) -> APIError:
        way_out = "send less, or serve with --max-body-bytes N"
        return APIError(413, f"the body must have at most {self.max_bytes} bytes: {way_out}")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def check_json(name: str, text: str | bytes) -> Any:
    """What it decodes to. Raises ValueError: it is no JSON, or nested too deep."""
    try:
        return from_json(text)
    except ValueError as error:
        raise ValueError(f"{name} must be JSON, nested at most {NESTING} deep: {error}") from None


def check_kind(content_type: str | None, body: bytes) -> None:
    """Raises APIError: 400, there is no body, or it is not said to be JSON. A page of another site can send any other
    kind without asking first."""
    if not body:
        raise APIError(400, "the body must be JSON, and is empty: send at least {}")
    kind = (content_type or "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/([^/]+\+)?json", kind):
        got = describe(content_type) if content_type else "none"
        raise APIError(400, f"the header Content-Type must be application/json, got {got}")


class _BoundedRequest(Request):
    """What FastAPI asks for a body. It gets the route's own type, ready, which it takes as it is."""

    def __init__(self, request: Request, kind: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._kind = kind
        self._bodies: Bodies = request.app.state.bodies

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self._bodies.read(self)
            check_kind(self.headers.get("content-type"), self._body)
        return self._body

    async def json(self) -> BaseModel:
        body = await self._bodies.decode(await self.body(), self._kind)
        if isinstance(body, Sampling | Pooling) and body.request_id is None:
            body.request_id = caller.get().request_id
        return body


class BodyRoute(APIRoute):
    """A route whose bodies `app.state.bodies` reads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind = cast("type[BaseModel]", self.body_field.field_info.annotation)

        async def bounded(request: Request) -> Response:
            return await handle(_BoundedRequest(request, kind))

        return bounded
