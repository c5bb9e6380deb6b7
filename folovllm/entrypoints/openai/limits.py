"""Who may come in: a client with a key, while the queue is not too long.

vLLM: entrypoints/serve/middleware/authenticate.py (AuthenticationMiddleware)
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from folovllm.entrypoints.clients.engine_client import EngineClient
from folovllm.entrypoints.openai.errors import APIError

ASSETS = ("chat.js", "live.js", "chat.css")
"""What the page is made of, in static/."""
OPEN_PATHS = ("/", "/health", *(f"/assets/{name}" for name in ASSETS))
"""They tell nothing of anyone: the page without its data, and whether the server lives."""


class Keys:
    """The keys that a client may name. Each is compared in the same time, right or wrong."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app, self._hashes = app, [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._hashes and scope["path"] not in OPEN_PATHS:
            key = bearer(scope)
            # The digests have one length, and every key is compared: neither its length nor its place shows.
            right = [hmac.compare_digest(_digest(key), known) for known in self._hashes]
            if not any(right):
                error = APIError(
                    401,
                    "the API key is missing or wrong: send 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


def bearer(scope: Scope) -> str:
    """The key that a request names; empty where it names none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
    return ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def salt_for(key: str, wanted: str | None) -> str:
    """A cache salt that requests of one key share, and no others; `wanted`, the request's own, holds as well."""
    return hashlib.sha256(_digest(key) + (wanted or "").encode("utf-8", "surrogatepass")).hexdigest()


class Gate:
    """Lets requests in until as many wait as `max_queue` allows."""

    def __init__(self, llm: EngineClient, max_queue: int) -> None:
        self.llm, self.max_queue = llm, max_queue
        self.num_inside = 0
        self.draining = False

    def num_waiting(self, count: int = 0) -> int:
        """Requests that would wait, were `count` more let in. What has not reached the engine takes its free rows, if
        nothing waits there already."""
        load = self.llm.load()
        free = 0 if load.waiting else load.rows - load.running
        on_the_way = self.num_inside - load.running - load.waiting - load.swapped
        return load.waiting + max(0, on_the_way + count - free)

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Raises APIError: 503 while the server shuts down, 429 where `count` more would have to wait too long, 400
        where they always would."""
        if self.draining:
            raise shutting_down()
        if count > (most := max(1, self.llm.load().rows + self.max_queue)):
            raise APIError(
                400,
                f"prompt must have at most {most} entries, got {count}: the batch and the queue hold no more; send "
                f"less, or serve with --max-queue {count}",
                param="prompt",
            )
        if self.num_waiting(count) > self.max_queue:
            raise APIError(
                429,
                f"{self.num_waiting()} requests wait, and the queue holds {self.max_queue}: try again",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        self.num_inside += count
        try:
            yield
        finally:
            self.num_inside -= count


def shutting_down() -> APIError:
    return APIError(503, "the server is shutting down", headers={"Connection": "close"})
