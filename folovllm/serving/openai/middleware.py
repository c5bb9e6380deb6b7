"""ASGI middleware: a request must name a key, if the server asks for one, and a host that this server is. The name that
it gives itself comes back with the answer.

A page that a browser has loaded from anywhere can have its name resolved to 127.0.0.1 later on, and then it talks to
whatever listens there ("DNS rebinding"). The name in `Host` gives it away: it is the page's, not this server's.

vLLM: entrypoints/serve/middleware/authenticate.py (AuthenticationMiddleware)
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from folovllm.serving.openai.errors import APIError

MAX_ID = 1024  # it is a part of each chunk's id


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HostMiddleware:
    """Answers 400 to a request that names two keys, or a host that this server is not.

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
            return APIError(400, "Authorization must be given once, got several: send the one that counts")
        if self.hosts is None:
            return None
        for name, value in scope["headers"]:
            if name != b"host":
                continue
            given = value.decode("latin-1").lower()
            parts = _HOST.fullmatch(given)
            if parts is None:
                return APIError(400, f"Host must be a name or an address, with a port or without, got {given!r}")
            host = parts["address"] or parts["name"]
            if host not in self.hosts and not is_loopback(host):
                return APIError(
                    400, f"Host must be a name of this server, got {host!r}; serve with --allowed-host {host}, or a key"
                )
        return None


_HOST = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^][:/?#@\s]*))(:\d*)?")
"""RFC 9110, without what only a URL has: `127.0.0.1:80@evil.com` is evil.com there."""


class RequestIdMiddleware:
    """Sends X-Request-Id back, by which a client or a proxy finds an answer again, and refuses one that is too long."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = [pair for pair in scope.get("headers", ()) if pair[0] == b"x-request-id"][:1]

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *found]
            await send(message)

        if not found or len(found[0][1]) <= MAX_ID:
            await self.app(scope, receive, named)
        else:
            await APIError(400, f"X-Request-Id must have at most {MAX_ID} characters").response()(scope, receive, send)


ASSETS = ("words.js", "markdown.js", "steps.js", "live.js", "chat.js", "chat.css")
"""What the page is made of, in static/."""
OPEN_PATHS = ("/", "/health", "/ping", *(f"/assets/{name}" for name in ASSETS))
"""They tell nothing of anyone: the page without its data, and whether the server lives."""


class AuthenticationMiddleware:
    """The keys that a client may name. Each is compared in the same time, right or wrong."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app, self._hashes = app, [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._hashes and _own_path(scope) not in OPEN_PATHS:
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


def _own_path(scope: Scope) -> str:
    """Without the prefix of --root-path, where the proxy in front has left it."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def bearer(scope: Scope) -> str:
    """The key that a request names; empty where it names none."""
    for name, value in scope["headers"]:
        if name == b"x-api-key":  # as Anthropic's clients send it
            return value.decode("latin-1").strip()
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
    return ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def salt_for(key: str, wanted: str | None) -> str:
    """A cache salt that requests of one key share, and no others; `wanted`, the request's own, holds as well."""
    return hashlib.sha256(_digest(key) + (wanted or "").encode("utf-8", "surrogatepass")).hexdigest()
