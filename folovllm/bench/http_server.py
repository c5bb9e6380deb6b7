"""A server that is asked over HTTP: any with OpenAI's /v1/completions. It speaks HTTP by itself and needs no package.

vLLM: benchmarks/lib/endpoint_request_func.py
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from folovllm.bench.load_requests import CacheCounters, LoadRequest
from folovllm.bench.metrics import RequestTimes
from folovllm.utils.checks import describe

_WORDS = (
    "One day a small cat found an old key under the tree and wanted to know which door it would open. 从前有一只小猫。"
)
# What /metrics calls it, after the server's own name and a colon -> our field.
_COUNTERS = {
    "kv_cache_usage_perc": "kv_usage",
    "prefix_cache_queries_total": "prefix_queries",
    "prefix_cache_hits_total": "prefix_hits",
    "num_preemptions_total": "preemptions",
}


class HttpServer:
    """Raises ValueError: no http:// address. RuntimeError, OSError, from start(): there is no such server, or it
    refuses."""

    poll_seconds = 0.25  # how often /metrics is asked: more would be a load itself

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or not parts.hostname or not port:
            raise ValueError(f"url must be like http://127.0.0.1:8000, got {url!r}")
        self.url, self._host, self._port, self._path = url, parts.hostname, port, parts.path.rstrip("/")
        self._key, self.model = key, ""
        self._ids: list[int] = []

    async def start(self) -> None:
        self.model = json.loads(await self._get("/v1/models"))["data"][0]["id"]
        tokens = json.loads(await self._get("/tokenize", {"model": self.model, "prompt": _WORDS}))["tokens"]
        self._ids = sorted(set(tokens))

    async def stop(self) -> None:
        """It goes on for others."""

    @property
    def label(self) -> str:
        return f"{self.model} at {self.url}"

    def usable(self, ids: list[int]) -> list[int]:
        """The same prompt in tokens that this server has: the size of its vocabulary is not known, so they are those
        of a text. Equal ids stay equal, so what prompts share they go on sharing."""
        return [self._ids[each % len(self._ids)] for each in ids]

    async def counters(self) -> CacheCounters | None:
        """None: it has no /metrics, or other ones."""
        try:
            body = await self._get("/metrics")
        except (OSError, RuntimeError):
            return None
        found: dict[str, float] = {}
        for line in body.decode(errors="replace").splitlines():
            name, _, rest = line.partition("{")
            field = _COUNTERS.get(name.rpartition(":")[2])
            if field is not None and not line.startswith("#"):
                found[field] = float(rest.rpartition(" ")[2])
        return CacheCounters(**found) if set(found) == set(_COUNTERS.values()) else None

    async def ask(self, request: LoadRequest) -> RequestTimes:
        body: dict[str, Any] = {"model": self.model, "prompt": request.prompt, "max_tokens": request.max_tokens}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, **request.sampling}
        answer, began = RequestTimes(), time.perf_counter()
        try:
            async for data in self._events(body):
                if "error" in data:
                    raise RuntimeError(data["error"]["message"])
                if data["choices"]:
                    answer.arrivals.append(time.perf_counter() - began)
                if data.get("usage"):
                    answer.num_tokens = data["usage"]["completion_tokens"]
        except (OSError, RuntimeError, ValueError, KeyError, asyncio.IncompleteReadError) as error:
            answer.problem = f"{type(error).__name__}: {error}"
        answer.end(began)
        return answer

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[Any]:
        """The data of each server-sent event. Under HTTP/1.0 a body comes as it is, and ends with the connection."""
        reader, writer = await self._send("/v1/completions", body)
        try:
            async for line in reader:
                text = line.decode().strip()
                if text == "data: [DONE]":
                    return
                if text.startswith("data: "):
                    yield json.loads(text.removeprefix("data: "))
            raise RuntimeError("the stream ended before its end")
        finally:
            writer.close()

    async def _get(self, path: str, body: Any = None) -> bytes:
        """The body of the answer; with a `body` it is a POST."""
        reader, writer = await self._send(path, body)
        try:
            return await reader.read()
        finally:
            writer.close()

    async def _send(self, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send it, and read up to where the answer's body begins. Raises RuntimeError: its status is not 200."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=2**24)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{'GET' if body is None else 'POST'} {self._path}{path} HTTP/1.0", f"Host: {self._host}:{self._port}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        lines += [f"Authorization: Bearer {self._key}"] if self._key else []
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            if head.split(" ", 2)[1] != "200":
                text = describe((await reader.read()).decode(errors="replace"))
                raise RuntimeError(f"{head.splitlines()[0]}: {text}")
        except BaseException:
            writer.close()
            raise
        return reader, writer
