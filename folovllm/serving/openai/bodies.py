"""Request bodies: from bytes to the fields of a request, at a bounded cost.

    bytes ─▶ limit body ─▶ queue ─▶ JSON ─▶ all other limits ─▶ types ─▶ the route
             (while they come)        └──────── beside the event loop ────────┘

Each step is cheap for what the steps before let through. Decoding takes tens of milliseconds for the largest body;
checking types would take seconds for a million entries that are wrong, so that their number is looked at first.

vLLM: none
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from folovllm.serving.openai.errors import APIError, first_problem, refused
from folovllm.serving.openai.gate import Gate
from folovllm.serving.openai.limits import BodyLimits
from folovllm.serving.openai.protocol import CHANGES_NOTHING, without_what_changes_nothing
from folovllm.utils.checks import describe, nearest_name
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

NESTING = 200
"""How deep lists and objects may be nested. It is the decoder's, so it is no limit that can be changed."""
MAX_NAME = 64  # characters of a name that is compared with others
MAX_NAMED = 100  # names that the log may have, whatever clients send
_SMALL = 16 * 2**10  # decoded in less time than it takes to wake another thread


class Bodies:
    """Reads what comes to the routes of an application."""

    def __init__(self, limits: BodyLimits, gate: Gate, *, warns: bool = False) -> None:
        """warns: a field that nobody knows is left out, with a line in the log; else it is refused."""
        self.limits, self.gate, self.warns = limits, gate, warns
        self._named: set[str] = set()
        # One thread: however many large bodies come at a time, the interpreter is held by one of them.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="folovllm-decode")

    async def read(self, request: Request) -> bytes:
        """Raises APIError: 413 as soon as the body is known to be too large."""
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limits.body:
            raise self._too_large()
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self.limits.body:
                raise self._too_large()
            pieces.append(piece)
        return b"".join(pieces)

    async def decode(self, body: bytes, kind: type[BaseModel]) -> BaseModel:
        """Raises APIError: 400 for a body that is wrong, 429 and 503 as the gate."""
        with self.gate.admit(1):
            if len(body) <= _SMALL:
                return self._decode(body, kind)
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._decode_large, body, kind)

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
            self.limits.check(found)
        except ValueError as error:
            raise refused(error) from None
        try:
            known = without_what_changes_nothing(found, kind)
            return kind.model_validate(self._without_unknown(known, kind) if self.warns else known)
        except ValidationError as error:
            raise first_problem(error.errors(include_url=False)) from None

    def _without_unknown(self, body: Any, kind: type[BaseModel]) -> Any:
        """Raises APIError: a name that is nearly one of the fields', which would be a setting that does nothing."""
        if not isinstance(body, dict):
            return body
        unknown = [name for name in body if name not in kind.model_fields and name not in CHANGES_NOTHING]
        for name in unknown:
            near = nearest_name(name, kind.model_fields) if len(name) <= MAX_NAME else None
            if near is not None:
                raise APIError(400, f"{name} is not a field of this request; did you mean {near!r}?", param=name)
            if name not in self._named and len(self._named) < MAX_NAMED:
                self._named.add(name)
                logger.warning("a request has the field %s, which is not known here and left out", describe(name))
        return {name: value for name, value in body.items() if name not in unknown}

    def _too_large(self) -> APIError:
        most = self.limits.body
        return APIError(413, f"the body must have at most {most} bytes: send less, or serve with --limit body=N")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def check_json(name: str, text: str | bytes) -> Any:
    """What it decodes to. Raises ValueError: it is no JSON, or nested too deep."""
    try:
        return from_json(text)
    except ValueError as error:
        raise ValueError(f"{name} must be JSON, nested at most {NESTING} deep: {error}") from None


class _BoundedRequest(Request):
    """What FastAPI asks for a body. It gets the route's own type, ready, which it takes as it is."""

    def __init__(self, request: Request, kind: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._kind = kind
        self._bodies: Bodies = request.app.state.bodies

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self._bodies.read(self)
        return self._body

    async def json(self) -> BaseModel:
        return await self._bodies.decode(await self.body(), self._kind)


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
