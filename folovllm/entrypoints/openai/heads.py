"""What the head of a request must not say, and how long it and the body may take to come.

A page that a browser has loaded from anywhere can have its name resolved to 127.0.0.1 later on, and then it talks to
whatever listens there ("DNS rebinding"). The name in `Host` gives it away: it is the page's, not this server's.

vLLM: none (uvicorn and starlette have the pieces)
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from folovllm.entrypoints.openai.errors import APIError

READ_SECONDS = 60.0
"""From a request's first byte, or from the connection, to the end of its body."""


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Heads:
    """Answers 400 to a head that names two keys, or a host that this server is not.

    Args:
        hosts: names besides those of the loopback address; None lets every name in.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None) -> None:
        self.app = app
        self.hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        await (self.app if problem is None else problem.response())(scope, receive, send)

    def _problem(self, scope: Scope) -> APIError | None:
        names = [name for name, _ in scope["headers"]]
        if names.count(b"authorization") > 1:
            return APIError(400, "Authorization must be given once, got several: which key counts is not for a guess")
        if self.hosts is None:
            return None
        for name, value in scope["headers"]:
            host = _without_port(value.decode("latin-1").lower())
            if name == b"host" and host not in self.hosts and not is_loopback(host):
                return APIError(
                    400, f"Host must be a name of this server, got {host!r}; serve with --allowed-host {host}, or a key"
                )
        return None


def _without_port(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


class TimedH11(H11Protocol):
    """uvicorn's connection, which is closed when a request does not come to its end in time. uvicorn itself limits the
    pause between two requests alone."""

    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
