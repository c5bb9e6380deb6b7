"""ASGI middleware: a request must name a key, if the server asks for one, and a host that this server is. It is known
by an id, which is in its answer and in the log.

A page that a browser has loaded from anywhere can have its name resolved to 127.0.0.1 later on, and then it talks to
whatever listens there ("DNS rebinding"). The name in `Host` gives it away: it is the page's, not this server's.

vLLM: entrypoints/serve/middleware/authenticate.py (AuthenticationMiddleware)
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from folovllm.serving.logs import Caller, caller
from folovllm.serving.openai.errors import CLIENT_CLOSED_REQUEST, APIError, failed

MAX_ID = 1024  # it is a part of each chunk's id


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_HOST = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^][:/?#@\s]*))(:\d*)?")
"""RFC 9110, without what only a URL has: `127.0.0.1:80@evil.com` is evil.com there."""


class CallerMiddleware:
    """Knows a request by an id: X-Request-Id, or one that is made. It is in the answer and in what is logged meanwhile,
    so that a client or a proxy finds both again. An id that is too long is refused.

    Args:
        logs_access: a line for each request, when all of its answer has been sent.
    """

    def __init__(self, app: ASGIApp, logs_access: bool) -> None:
        self.app, self.logs_access = app, logs_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status: int | None = None  # no answer has begun
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if 0 < len(given) <= MAX_ID else uuid.uuid4().hex
        caller.set(Caller(name, headers))

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode("latin-1"))]
            await send(message)

        try:
            if len(given) > MAX_ID:
                error = APIError(400, f"X-Request-Id must have at most {MAX_ID} characters, got {len(given)}")
                await error.response(scope)(scope, receive, named)
            else:
                await self.app(scope, receive, named)
        except Exception as error:  # what no handler is for: it is raised anew, with its traceback
            if status is None:
                await failed(error).response(scope)(scope, receive, named)
            raise
        finally:
            if self.logs_access:
                fields = {"seconds": round(time.perf_counter() - began, 6)}
                where = get_client_addr(scope), scope["method"], get_path_with_query_string(scope)  # type: ignore[arg-type]
                what = scope["http_version"], status or CLIENT_CLOSED_REQUEST
                _access.info(_LINE, *where, *what, extra={"fields": fields})


_access = logging.getLogger("uvicorn.access")
_LINE = '%s - "%s %s HTTP/%s" %d'
"""uvicorn's, which a configuration for its logs may take apart. It writes its own when an answer begins."""


ASSETS = ("words.js", "markdown.js", "steps.js", "live.js", "chat.js", "chat.css", "grafana.json")
"""What the page is made of, in static/, and a dashboard of what /metrics has."""
OPEN_PATHS = ("/", "/health", "/ping", *(f"/assets/{name}" for name in ASSETS))
"""They tell nothing of anyone: the page without its data, and whether the server lives."""


class AuthenticationMiddleware:
    """Answers 400 to a request that names two keys, or a host that this server is not, and 401 to one without a key.
    Each key is compared in the same time, right or wrong.

    Args:
        keys: that a client may name; empty: it need not.
        hosts: names besides those of the loopback address; None lets every name in.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], hosts: Sequence[str] | None) -> None:
        self.app, self._hashes = app, [_digest(key) for key in keys]
        self.hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._wrong_host(scope) or self._wrong_key(scope) if scope["type"] == "http" else None
        await (self.app if problem is None else problem.response(scope))(scope, receive, send)

    def _wrong_host(self, scope: Scope) -> APIError | None:
        headers = Headers(scope=scope)
        if len(headers.getlist("authorization")) > 1:
            return APIError(400, "Authorization must be given once, got several: send the one that counts")
        if self.hosts is None:
            return None
        for given in map(str.lower, headers.getlist("host")):
            parts = _HOST.fullmatch(given)
            if parts is None:
                return APIError(400, f"Host must be a name or an address, with a port or without, got {given!r}")
            host = parts["address"] or parts["name"]
            if host not in self.hosts and not is_loopback(host):
                return APIError(
                    400, f"Host must be a name of this server, got {host!r}; serve with --allowed-host {host}, or a key"
                )
        return None

    def _wrong_key(self, scope: Scope) -> APIError | None:
        if not self._hashes or _own_path(scope) in OPEN_PATHS:
            return None
        key = bearer(scope)
        # The digests have one length, and every key is compared: neither its length nor its place shows.
        if any([hmac.compare_digest(_digest(key), known) for known in self._hashes]):  # noqa: C419  # not only the first
            return None
        return APIError(
            401,
            "the API key is missing or wrong: send 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _own_path(scope: Scope) -> str:
    """Without the prefix of --root-path, where the proxy in front has left it."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def bearer(scope: Scope) -> str:
    """The key that a request names; empty where it names none."""
    headers = Headers(scope=scope)
    if (key := headers.get("x-api-key")) is not None:  # as Anthropic's clients send it
        return key.strip()
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def salt_for(key: str, wanted: str | None) -> str:
    """A cache salt that requests of one key share, and no others; `wanted`, the request's own, holds as well."""
    return hashlib.sha256(_digest(key) + (wanted or "").encode("utf-8", "surrogatepass")).hexdigest()
