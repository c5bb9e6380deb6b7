"""A server under load, seen from a client: how long the first token takes, how long each further one, and how many
requests were served as well as they should be.

    requests (random, or a file's)  ──▶  arrivals.send()        ──▶  server.ask()  ──▶  RequestTimes  ──▶  a row
                                         rate, burstiness, clients   over HTTP

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from folovllm.bench.arrivals import Arrivals, add_arrivals, arrivals_of, send
from folovllm.bench.metrics import load_row, parse_goals
from folovllm.bench.options import add_common, add_number
from folovllm.bench.report import Line, Report, Row, medians
from folovllm.bench.requests import CacheCounters, LoadRequest, Server, random_requests, read_requests
from folovllm.bench.workload import progress_bar
from folovllm.entrypoints.cli.parser import needing

URL = "http://127.0.0.1:8000"
USUAL = [Arrivals(max_concurrency=1), Arrivals(max_concurrency=8)]
WARM_UP = 2  # requests before the first load, which find everything loaded and nothing compiled


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "A server that runs, under load: TTFT, TPOT, ITL and goodput, as its clients see them."
    command.add_argument("--base-url", metavar="URL", default=URL, help=f"the server's address (default: {URL})")
    command.add_argument("--api-key", metavar="KEY", help="the key that the server asks for (default: none)")
    add_requests(command)
    add_common(command, rounds=1)


def add_requests(command: argparse.ArgumentParser) -> None:
    text = 'requests of a file, a line {"prompt": "a text", "output_tokens": N} for each (default: random ones)'
    command.add_argument("--dataset-path", type=Path, metavar="FILE", help=text)
    add_number(command, "--num-requests", "--num-prompts", help="in each load (default: 64)")
    add_number(command, "--input-len", help="prompt tokens of a request (default: 64)")
    add_number(command, "--output-len", help="new tokens of a request (default: 64)")
    add_arrivals(command)
    text = "count requests that are as fast as this, in ms: ttft:X, tpot:X, e2el:X (default: none)"
    command.add_argument("--goodput", nargs="+", action="extend", default=[], metavar="NAME:MS", help=text)


def run(args: argparse.Namespace) -> Report:
    """Raises ValueError: options that do not go together, a line of the file that is no request, or no server."""
    with needing("serve", "`bench serve`"):
        from folovllm.bench.http_client import HttpServer
    args.neighbours = None  # to which the server, which is what is measured, would be one
    return measured(args, HttpServer(args.base_url, args.api_key), *requests_of(args))


def requests_of(args: argparse.Namespace) -> tuple[list[LoadRequest], str]:
    """And what they are, in words."""
    if args.dataset_path is None:
        count, prompt, output = (size or 64 for size in (args.num_requests, args.input_len, args.output_len))
        what = f"{count} requests, {prompt} tokens in, {output} out"
        return random_requests(count, prompt, output, args.seed), what
    if args.input_len is not None:
        raise ValueError("input_len must not be given with dataset_path: its prompts are as long as they are")
    requests = read_requests(args.dataset_path, args.output_len, args.num_requests)
    num_tokens = sum(each.max_tokens for each in requests)
    return requests, f"{len(requests)} requests of a file, {num_tokens:,} tokens out"


def measured(
    args: argparse.Namespace, server: Server, requests: Sequence[LoadRequest], what: str,
    usual: Sequence[Arrivals] = USUAL,
) -> Report:  # fmt: skip
    """A row for each load. usual: the loads where the options name none."""
    loads, goals = arrivals_of(args) or usual, parse_goals(args.goodput)
    rows, problems = asyncio.run(_measure_in_turn(server, requests, loads, args, goals))
    notes = [f"{medians(args.rounds, 'round')}, after {WARM_UP} requests to warm up. Seed {args.seed}."]
    if isinstance(requests[0].prompt, str):
        notes.append("The same texts in each load: a server that keeps prefixes finds them from the second on.")
    if goals:
        text = ", ".join(f"{name} within {limit:g} ms" for name, limit in goals.items())
        notes.append(f"Goodput counts requests with {text}.")
    notes.append("ITL is between two outputs of a stream; TPOT is a request's time after its first, per token.")
    notes += [f"failed: {problem}" for problem in dict.fromkeys(problems)]
    columns = [column for column in rows[0][0] if any(row[column] is not None for each in rows for row in each)]
    title, details = f"{server.label}: {what}", {"goals_ms": goals}
    return Report.of(args, title, columns, list(map(_line, rows)), notes, details=details)


async def _measure_in_turn(
    server: Server, requests: Sequence[LoadRequest], loads: Sequence[Arrivals], args: argparse.Namespace, goals: Any
) -> tuple[list[list[Row]], list[str]]:
    """The loads take turns: the rows of each, and what was wrong with requests that failed."""
    rows: list[list[Row]] = [[] for _ in loads]
    problems: list[str] = []
    await server.start()
    try:
        with progress_bar(1 + args.rounds * len(loads)) as tick:
            tick("warm-up")
            few = [replace(request, max_tokens=min(request.max_tokens, 4)) for request in requests[:WARM_UP]]
            await _measure(server, few, Arrivals(), {}, args.seed, 0, [])
            for turn in range(args.rounds):
                for number, load in enumerate(loads):
                    tick(f"round {turn + 1}/{args.rounds}: {load.describe()}")
                    by = 1 + turn * len(loads) + number
                    rows[number].append(await _measure(server, requests, load, goals, args.seed, by, problems))
    finally:
        await server.stop()
    return rows, problems


async def _measure(
    server: Server, requests: Sequence[LoadRequest], load: Arrivals, goals: dict[str, float], seed: int, by: int,
    problems: list[str],
) -> Row:  # fmt: skip
    """One load, once. `by` gives each load other ids, so that none finds what the one before left in the cache of
    prefixes. A text stays as it is: it was given to be measured."""
    usable = [
        each if isinstance(each.prompt, str) else replace(each, prompt=server.usable([id_ + by for id_ in each.prompt]))
        for each in requests
    ]
    before, began = await server.counters(), time.perf_counter()
    answers = await send(usable, server.ask, load, seed)
    seconds = time.perf_counter() - began
    problems += [answer.problem for answer in answers if answer.problem is not None]
    row = {"load": load.describe(), **load_row(answers, seconds, goals)}
    return row | CacheCounters.row(before, await server.counters())


def _line(rows: list[Row]) -> Line:
    """A row of all rounds: numbers that were measured in all of them are samples, counts the median of theirs."""
    samples = {key: [row[key] for row in rows] for key in rows[0] if all(isinstance(row[key], float) for row in rows)}
    facts = {key: value for key, value in rows[0].items() if key not in samples}
    for key in facts:
        if all(isinstance(row[key], int) for row in rows):
            facts[key] = round(statistics.median(row[key] for row in rows))
    return facts, samples
