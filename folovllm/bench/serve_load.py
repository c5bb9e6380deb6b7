"""A server under load, seen from a client: how long the first token takes, how long each further one, and how many
requests were served as well as they should be.

    closed loop    `concurrency` clients, each of which asks anew when it has its answer: how much the server can do
    Poisson        requests come at random moments, `rate` a second, whether or not earlier ones are answered: what
                   users of a busy server see

    request ──── TTFT ────▶ first token ── ITL ─▶ · ── ITL ─▶ · ── ITL ─▶ last          TPOT: the mean of its ITLs

It speaks HTTP by itself and needs no package. What it measures is any server with OpenAI's /v1/completions.

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from folovllm.bench.report import Report, Row
from folovllm.bench.workload import require_at_least
from folovllm.utils.checks import describe

GOALS = ("ttft", "tpot", "e2e")
_WORDS = (
    "One day a small cat found an old key under the tree and wanted to know which door it would open. 从前有一只小猫。"
)


@dataclass
class Target:
    """Where the server is, and what it calls its model."""

    host: str
    port: int
    path: str
    key: str | None
    model: str = ""

    @classmethod
    def of(cls, url: str, key: str | None) -> Target:
        """Raises ValueError: no http:// address."""
        parts = urlsplit(url)
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or not parts.hostname or not port:
            raise ValueError(f"url must be like http://127.0.0.1:8000, got {url!r}")
        return cls(parts.hostname, port, parts.path.rstrip("/"), key)


@dataclass
class Answer:
    """When things came, in seconds since the request was sent. `problem` is what went wrong instead."""

    arrivals: list[float] = field(default_factory=list)
    num_tokens: int = 0
    e2e: float = 0.0
    problem: str | None = None

    @property
    def ttft(self) -> float:
        return self.arrivals[0]

    @property
    def tpot(self) -> float:
        return (self.arrivals[-1] - self.arrivals[0]) / max(self.num_tokens - 1, 1)

    def meets(self, goals: dict[str, float]) -> bool:
        """Whether it was as fast as `goals`, in milliseconds, ask."""
        return self.problem is None and all(getattr(self, name) * 1e3 <= limit for name, limit in goals.items())


async def ask(target: Target, body: dict[str, Any]) -> Answer:
    """One streamed completion."""
    answer, began = Answer(), time.perf_counter()
    try:
        async for data in _events(target, {**body, "stream": True, "stream_options": {"include_usage": True}}):
            if "error" in data:
                raise RuntimeError(data["error"]["message"])
            if data["choices"]:
                answer.arrivals.append(time.perf_counter() - began)
            if data.get("usage"):
                answer.num_tokens = data["usage"]["completion_tokens"]
    except (OSError, RuntimeError, ValueError, KeyError, asyncio.IncompleteReadError) as error:
        answer.problem = f"{type(error).__name__}: {error}"
    answer.e2e = time.perf_counter() - began
    if answer.problem is None and not answer.arrivals:
        answer.problem = "the answer had no tokens"
    return answer


async def _events(target: Target, body: dict[str, Any]) -> Any:
    """The data of each server-sent event. Under HTTP/1.0 a body comes as it is, and ends with the connection."""
    reader, writer = await _post(target, "/v1/completions", body)
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


async def _post(target: Target, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send it, and read up to where the answer's body begins. Raises RuntimeError: its status is not 200."""
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=2**24)
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {target.path}{path} HTTP/1.0", f"Host: {target.host}:{target.port}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    lines += [f"Authorization: Bearer {target.key}"] if target.key else []
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if head.split(" ", 2)[1] != "200":
            raise RuntimeError(f"{head.splitlines()[0]}: {describe((await reader.read()).decode(errors='replace'))}")
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def _fetch(target: Target, path: str, body: Any = None) -> Any:
    reader, writer = await _post(target, path, body)
    try:
        return json.loads(await reader.read())
    finally:
        writer.close()


async def closed_loop(target: Target, bodies: list[dict[str, Any]], concurrency: int) -> list[Answer]:
    waiting = iter(bodies)
    answers: list[Answer] = []

    async def client() -> None:
        for body in waiting:
            answers.append(await ask(target, body))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return answers


async def poisson(target: Target, bodies: list[dict[str, Any]], rate: float, seed: int) -> list[Answer]:
    """The gaps between arrivals are drawn from an exponential distribution with the mean 1 / rate."""
    rng = random.Random(seed)
    due, began, tasks = 0.0, time.perf_counter(), []
    for body in bodies:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due - (time.perf_counter() - began)))
        tasks.append(asyncio.create_task(ask(target, body)))
    return list(await asyncio.gather(*tasks))


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed; 0 of none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, -int(-len(ranked) * share // 1) - 1))] if ranked else 0.0


def row(name: str, answers: list[Answer], seconds: float, goals: dict[str, float]) -> Row:
    good = [answer for answer in answers if answer.problem is None]
    gaps = [b - a for answer in good for a, b in zip(answer.arrivals, answer.arrivals[1:], strict=False)]
    found: Row = {
        "load": name,
        "answered": len(good),
        "failed": len(answers) - len(good),
        "requests_per_s": round(len(good) / seconds, 2),
        "tokens_per_s": round(sum(answer.num_tokens for answer in good) / seconds, 1),
    }
    for label, values in (
        ("ttft", [answer.ttft for answer in good]),
        ("tpot", [answer.tpot for answer in good]),
        ("itl", gaps),
        ("e2e", [answer.e2e for answer in good]),
    ):
        found[f"{label}_p50_ms"] = round(percentile(values, 0.5) * 1e3, 2)
        found[f"{label}_p99_ms"] = round(percentile(values, 0.99) * 1e3, 2)
    if goals:
        found["goodput_per_s"] = round(sum(answer.meets(goals) for answer in good) / seconds, 2)
    return found


async def _measure(
    target: Target,
    *,
    concurrency: list[int],
    rates: list[float],
    num_requests: int,
    input_len: int,
    output_len: int,
    goals: dict[str, float],
    seed: int,
) -> tuple[list[Row], list[str]]:
    target.model = (await _fetch(target, "/v1/models"))["data"][0]["id"]
    pool = (await _fetch(target, "/tokenize", {"model": target.model, "prompt": _WORDS}))["tokens"]
    rng = random.Random(seed)
    loads = [(f"{clients} clients", clients, 0.0) for clients in concurrency]
    loads += [(f"{rate:g} requests/s", 0, rate) for rate in rates]
    rows, problems = [], []
    for name, clients, rate in loads:
        bodies = [  # other prompts for each load: what the one before left in the cache helps none
            {
                "model": target.model,
                "prompt": rng.choices(pool, k=input_len),
                "max_tokens": output_len,
                "temperature": 0,
                "ignore_eos": True,
            }
            for _ in range(num_requests)
        ]
        began = time.perf_counter()
        if clients:
            answers = await closed_loop(target, bodies, clients)
        else:
            answers = await poisson(target, bodies, rate, seed)
        rows.append(row(name, answers, time.perf_counter() - began, goals))
        problems += [answer.problem for answer in answers if answer.problem is not None]
    return rows, problems


def run(
    url: str,
    *,
    command: str,
    key: str | None = None,
    concurrency: list[int] | None = None,
    rates: list[float] | None = None,
    num_requests: int = 64,
    input_len: int = 64,
    output_len: int = 64,
    goals: dict[str, float] | None = None,
    seed: int = 0,
) -> Report:
    """Raises ValueError: a wrong option. OSError, RuntimeError: there is no such server, or it refuses."""
    target = Target.of(url, key)
    clients, rates = concurrency or ([] if rates else [1, 8]), rates or []
    require_at_least(
        1, num_requests=num_requests, input_len=input_len, output_len=output_len, concurrency=min(clients or [1])
    )
    if any(not 0 < rate < float("inf") for rate in rates):
        raise ValueError(f"request_rate must be positive, got {rates}")
    rows, problems = asyncio.run(
        _measure(
            target,
            concurrency=clients,
            rates=rates,
            num_requests=num_requests,
            input_len=input_len,
            output_len=output_len,
            goals=goals or {},
            seed=seed,
        )
    )
    title = f"{target.model} at {url}: {num_requests} requests, {input_len} tokens in, {output_len} out"
    notes = ["ITL is between two events of a stream; TPOT is a request's time after its first token, for each token."]
    if goals:
        text = ", ".join(f"{name} within {limit:g} ms" for name, limit in goals.items())
        notes.append(f"Goodput counts requests with {text}.")
    notes += [f"failed: {problem}" for problem in dict.fromkeys(problems)]
    return Report("serve-load", title, command, list(rows[0]), rows, notes)
