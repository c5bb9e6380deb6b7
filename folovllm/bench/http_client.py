"""A server that is asked over HTTP: any with OpenAI's /v1/completions, and /tokenize for random prompts.

vLLM: benchmarks/lib/endpoint_request_func.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from folovllm.bench.metrics import RequestTimes
from folovllm.bench.requests import CacheCounters, LoadRequest
from folovllm.utils.checks import describe

_WORDS = (
    "One day a small cat found an old key under the tree and wanted to know which door it would open. 从前有一只小猫。"
)
# What /metrics calls it, after the server's own name and a colon -> our field.
_COUNTERS = {
    "prefix_cache_queries_total": "prefix_queries",
    "prefix_cache_hits_total": "prefix_hits",
    "num_preemptions_total": "preemptions",
}


class HttpServer:
    """Raises ValueError: no http:// or https:// address, and from start(): there is no such server, or it refuses."""

    def __init__(self, url: str, key: str | None) -> None:
        try:
            scheme = httpx.URL(url).scheme
        except (httpx.InvalidURL, TypeError):
            scheme = ""
        if scheme not in ("http", "https"):
            raise ValueError(f"base_url must be like http://127.0.0.1:8000, got {url!r}")
        self.url, self._key, self.model, self._ids = url, key, "", list[int]()

    async def start(self) -> None:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(base_url=self.url, headers=headers, limits=unlimited, timeout=None)
        try:
            self.model = await self._found("/v1/models", lambda answer: answer["data"][0]["id"])
            body = {"model": self.model, "prompt": _WORDS}
            self._ids = sorted(set(await self._found("/tokenize", lambda answer: answer["tokens"], body)))
        except (httpx.HTTPError, LookupError, ValueError) as error:
            await self.stop()
            raise ValueError(f"base_url must be of a server that answers, got {self.url!r}: {error}") from error

    async def stop(self) -> None:
        """The server goes on for others."""
        await self._client.aclose()

    @property
    def label(self) -> str:
        return f"{self.model} at {self.url}"

    def usable(self, ids: list[int]) -> list[int]:
        """The same prompt in tokens that this server has: the size of its vocabulary is not known, so they are those
        of a text. Equal ids stay equal, so what prompts share they go on sharing."""
        return [self._ids[each % len(self._ids)] for each in ids]

    async def counters(self) -> CacheCounters | None:
        """None: it has no /metrics, or other ones."""
        found: dict[str, float] = {}
        try:
            lines = (await self._client.get("/metrics")).text.splitlines()
        except httpx.HTTPError:
            return None
        for line in lines:
            name, _, rest = line.partition("{")
            field = _COUNTERS.get(name.rpartition(":")[2])
            if field is not None and not line.startswith("#"):
                found[field] = float(rest.rpartition(" ")[2])
        return CacheCounters(**found) if set(found) == set(_COUNTERS.values()) else None

    async def ask(self, request: LoadRequest) -> RequestTimes:
        body: dict[str, Any] = {"model": self.model, "prompt": request.prompt, "max_tokens": request.max_tokens}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, **request.sampling}
        times, began = RequestTimes(problem="the stream ended before its end"), time.perf_counter()
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as answer:
                if answer.is_error:
                    raise ValueError(f"{answer.status_code}: {describe((await answer.aread()).decode())}")
                async for line in answer.aiter_lines():
                    text = line.removeprefix("data: ")
                    if text == "[DONE]":
                        times.problem = None
                    elif text != line:
                        data = json.loads(text)
                        if "error" in data:
                            raise ValueError(data["error"]["message"])
                        if data["choices"]:
                            times.arrivals.append(time.perf_counter() - began)
                        if data.get("usage"):
                            times.num_tokens = data["usage"]["completion_tokens"]
        except (httpx.HTTPError, LookupError, ValueError) as error:
            times.problem = f"{type(error).__name__}: {error}"
        times.end(began)
        return times

    async def _found(self, path: str, find: Callable[[Any], Any], body: Any = None) -> Any:
        """What `find` takes of an answer's JSON; with a `body` it is a POST. Raises ValueError: it is a refusal."""
        answer = await self._client.request("GET" if body is None else "POST", path, json=body)
        if answer.is_error:
            raise ValueError(f"{answer.status_code}: {describe(answer.text)}")
        return find(answer.json())
