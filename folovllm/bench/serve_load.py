"""A server under load, seen from a client: how long the first token takes, how long each further one, and how many
requests were served as well as they should be.

    requests (a preset, or random ones)  ──▶  arrivals.send()  ──▶  server.ask()  ──▶  RequestTimes  ──▶  a row
                                              rate, burstiness,     in this process,
                                              clients               or over HTTP

Meanwhile the server is asked, some times a second, how full its KV cache is.

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from folovllm.bench.arrivals import Arrivals, send
from folovllm.bench.breakdown import Breakdown
from folovllm.bench.load_request import CacheCounters, LoadRequest, Server
from folovllm.bench.metrics import RequestTimes, load_row
from folovllm.bench.preset_draws import Preset
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import progress_bar, require_at_least

TOP_ID = 10_000  # random prompts are drawn up to here; a server takes them as it has tokens
WARM_UP = 2  # requests before the first load, which find everything loaded and nothing compiled


@dataclass(frozen=True)
class Work:
    """Requests of a load: those of a file, of a preset, or random ones of equal lengths."""

    num_requests: int = 64
    input_len: int = 64
    output_len: int = 64
    seed: int = 0
    preset: Preset | None = None
    """Carries its own numbers and seed; the four before it then say nothing."""
    given: tuple[LoadRequest, ...] = ()
    """As they are, whatever the rest says."""

    def __post_init__(self) -> None:
        require_at_least(1, num_requests=self.num_requests, input_len=self.input_len, output_len=self.output_len)

    def draw(self) -> list[LoadRequest]:
        """The same for the same numbers and seed, to the token."""
        if self.given:
            return list(self.given)
        if self.preset is not None:
            drawn = zip(*self.preset.draw(), strict=True)
            return [LoadRequest(prompt, length, self.preset.sampling) for prompt, length in drawn]
        rng = random.Random(self.seed)
        return [
            LoadRequest([rng.randint(0, TOP_ID) for _ in range(self.input_len)], self.output_len, {"temperature": 0.0})
            for _ in range(self.num_requests)
        ]

    def describe(self) -> str:
        if self.given:
            return f"{len(self.given)} requests of a file, {sum(each.max_tokens for each in self.given):,} tokens out"
        if self.preset is None:
            return f"{self.num_requests} requests, {self.input_len} tokens in, {self.output_len} out"
        requests = self.draw()
        tokens = sum(len(request.prompt) for request in requests), sum(request.max_tokens for request in requests)
        return f"{len(requests)} requests, {tokens[0]:,} tokens in, {tokens[1]:,} out"


@dataclass
class Measured:
    """One load, once: its row, and the breakdown's rows where there is one."""

    row: Row
    parts: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def shifted(requests: Sequence[LoadRequest], by: int) -> list[LoadRequest]:
    """Other ids in each load, so that what the one before left in the cache of prefixes helps none. A text stays as it
    is: whoever gives texts wants these."""
    return [
        request if isinstance(request.prompt, str) else replace(request, prompt=[each + by for each in request.prompt])
        for request in requests
    ]


async def measure(
    server: Server,
    requests: Sequence[LoadRequest],
    arrivals: Arrivals,
    goals: dict[str, float],
    seed: int,
    breakdown: Breakdown | None = None,
) -> Measured:
    usable = [
        request if isinstance(request.prompt, str) else replace(request, prompt=server.usable(request.prompt))
        for request in requests
    ]
    before, peaks = await server.counters(), [0.0]
    watching = asyncio.create_task(_watch(server, peaks)) if before is not None else None
    began = time.perf_counter()
    answers: list[RequestTimes] = await send(usable, server.ask, arrivals, seed)
    seconds = time.perf_counter() - began
    if watching is not None:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    row = {"load": arrivals.describe(), **load_row(answers, seconds, goals)}
    after = await server.counters()
    row |= _cache_row(before, after, max([*peaks, after.kv_usage if after else 0.0]))
    found = breakdown.rows(row["load"], row["output_tokens_per_s"]) if breakdown is not None else []
    return Measured(row, found, [answer.problem for answer in answers if answer.problem is not None])


async def _watch(server: Server, peaks: list[float]) -> None:
    while True:
        await asyncio.sleep(server.poll_seconds)
        now = await server.counters()
        if now is not None:
            peaks.append(now.kv_usage)


def _cache_row(before: CacheCounters | None, after: CacheCounters | None, peak: float) -> Row:
    """None of everything where the server does not tell, and of hits where nothing was looked up."""
    if before is None or after is None:
        return {"kv_peak_share": None, "prefix_hit_rate": None, "preemptions": None}
    queries, hits = after.prefix_queries - before.prefix_queries, after.prefix_hits - before.prefix_hits
    return {
        "kv_peak_share": peak,
        "prefix_hit_rate": hits / queries if queries else None,
        "preemptions": int(after.preemptions - before.preemptions),
    }


async def _run(
    server: Server,
    work: Work,
    loads: Sequence[Arrivals],
    rounds: int,
    goals: dict[str, float],
    breakdown: Breakdown | None,
    tick: Callable[[str], None],
) -> list[list[Measured]]:
    """For each load, what each round measured. The loads take turns."""
    found: list[list[Measured]] = [[] for _ in loads]
    requests, seed, number = work.draw(), work.preset.seed if work.preset else work.seed, 1
    await server.start()
    try:
        tick("warm-up")
        few = [replace(request, max_tokens=min(request.max_tokens, 4)) for request in requests[:WARM_UP]]
        await measure(server, few, Arrivals(), {}, seed, breakdown)
        for turn in range(rounds):
            for load, results in zip(loads, found, strict=True):
                tick(f"round {turn + 1}/{rounds}: {load.describe()}")
                results.append(await measure(server, shifted(requests, number), load, goals, seed, breakdown))
                number += 1
    finally:
        await server.stop()
    return found


def run(
    server: Server,
    work: Work,
    loads: Sequence[Arrivals],
    *,
    command: str,
    goals: dict[str, float] | None = None,
    rounds: int = 1,
    breakdown: Breakdown | None = None,
) -> Report:
    """`breakdown`: the server's own, whose rows are then the report's.

    Raises:
        ValueError: a wrong option.
        OSError, RuntimeError: there is no such server, or it refuses.
    """
    require_at_least(1, rounds=rounds, loads=len(loads))
    goals = goals or {}
    with progress_bar(1 + rounds * len(loads)) as tick:
        found = asyncio.run(_run(server, work, loads, rounds, goals, breakdown, tick))
    seed = work.preset.seed if work.preset else work.seed
    notes = [f"{medians(rounds, 'round')}, after {WARM_UP} requests to warm up. Seed {seed}."]
    if work.given:
        notes.append("The same texts in each load: a server that keeps prefixes finds them from the second on.")
    if goals:
        text = ", ".join(f"{name} within {limit:g} ms" for name, limit in goals.items())
        notes.append(f"Goodput counts requests with {text}.")
    if breakdown is None:
        notes.append("ITL is between two outputs of a stream; TPOT is a request's time after its first, per token.")
        notes.append(f"kv peak: the fullest that was seen, with a look every {server.poll_seconds * 1e3:g} ms.")
        grouped = [[[result.row for result in results]] for results in found]
    else:
        notes.append(
            "submit wall + queue wait + prefill to first token = TTFT; add_request and tokenise lie in submit wall."
        )
        grouped = [[list(of) for of in zip(*(result.parts for result in results), strict=True)] for results in found]
    rows: list[Row] = []
    samples: list[dict[str, list[float]]] = []
    for of_rounds in (same for group in grouped for same in group):
        rows.append(_median_row(of_rounds))
        samples.append(_samples(of_rounds))
    problems = [problem for results in found for result in results for problem in result.problems]
    notes += [f"failed: {problem}" for problem in dict.fromkeys(problems)]
    details = {"goals_ms": goals}
    columns = [column for column in rows[0] if any(row[column] is not None for row in rows)]
    rows = [{column: row[column] for column in columns} for row in rows]
    title = f"{server.label}: {work.describe()}"
    return Report("serve-load", title, command, columns, rows, notes, details=details, samples=samples)


def _samples(rows: list[Row]) -> dict[str, list[float]]:
    """Every number that was measured in all rounds."""
    return {key: [row[key] for row in rows] for key in rows[0] if all(isinstance(row[key], float) for row in rows)}


def _median_row(rows: list[Row]) -> Row:
    """Counts of requests are the first round's where the rounds agree, else their median."""
    medians = {key: statistics.median(values) for key, values in _samples(rows).items()}
    whole = {
        key: round(statistics.median(row[key] for row in rows))
        for key in rows[0]
        if all(isinstance(row[key], int) for row in rows)
    }
    return rows[0] | whole | medians
