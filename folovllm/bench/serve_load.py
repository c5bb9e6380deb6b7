"""A server under load, seen from a client: how long the first token takes, how long each further one, and how many
requests were served as well as they should be.

    requests (random, or a file's)       ──▶  arrivals.send()  ──▶  server.ask()  ──▶  RequestTimes  ──▶  a row
                                              rate, burstiness,     in this process,
                                              clients               or over HTTP

Meanwhile the server is asked, some times a second, how full its KV cache is.

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from folovllm.bench.arrivals import Arrivals, add_arrivals, arrivals_of, send
from folovllm.bench.load_requests import LoadRequest, Work, file_work, random_work
from folovllm.bench.metrics import RequestTimes, load_row, parse_goals
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed, command_line, source
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.server import InProcessServer, Server, cache_row
from folovllm.bench.workload import progress_bar, require_at_least
from folovllm.config import CacheConfig, ModelConfig, SchedulerConfig
from folovllm.entrypoints.cli.parser import add_engine_arguments

USUAL = [Arrivals(max_concurrency=1), Arrivals(max_concurrency=8)]
WARM_UP = 2  # requests before the first load, which find everything loaded and nothing compiled
SIZES = ("num_requests", "input_len", "output_len")
ENGINE = [field.name for config in (ModelConfig, CacheConfig, SchedulerConfig) for field in fields(config)]
# Said of an engine in this process, with what they are where they are not given.
HERE = {"model": None, "dtype": "auto", "device": None, "load_format": None}


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "An engine, or a server that runs, under load: TTFT, TPOT, ITL and goodput, as its clients see them."
    command.description = text
    text = "ask the server at this address, such as http://127.0.0.1:8000 (default: an engine in this process)"
    command.add_argument("--url", help=text)
    add_model(command)
    command.add_argument("--input-len", type=int, metavar="N", help="prompt tokens of a request (default: 64)")
    add_load_arguments(command)
    add_rounds(command, default=1)
    add_seed(command)
    add_output(command)
    add_engine_arguments(command)


def add_load_arguments(command: argparse.ArgumentParser) -> None:
    """What any client of a server is told."""
    command.add_argument("--api-key", metavar="KEY", help="the key that the server asks for (default: none)")
    text = 'requests of a file, a line {"prompt": "a text", "output_tokens": N} for each (default: random ones)'
    command.add_argument("--dataset", type=Path, metavar="FILE", help=text)
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", help="in each load (default: 64)")
    command.add_argument("--output-len", type=int, metavar="N", help="new tokens of a request (default: 64)")
    add_arrivals(command)
    text = "count requests that are as fast as this, in ms: ttft:X, tpot:X, e2el:X (default: none)"
    command.add_argument("--goodput", nargs="+", action="extend", default=[], metavar="NAME:MS", help=text)


def check_args(args: argparse.Namespace) -> None:
    """Raises ValueError: an option to look into an engine that is in another process."""
    for name in ("trace", "nvtx", "watch"):
        if args.url is not None and getattr(args, name):
            raise ValueError(
                f"--{name} must not be given with --url: the engine is in the server's process. Start that one with "
                "`folovllm serve --trace FILE`"
            )


def from_args(args: argparse.Namespace) -> Report:
    return measured(args, work_of(args), arrivals_of(args) or USUAL)


def work_of(args: argparse.Namespace) -> Work:
    """What the options ask for. Raises ValueError: they do not go together, or a line of the file is no request."""
    if args.dataset is None:
        return random_work(**{name: getattr(args, name) for name in SIZES if getattr(args, name) is not None},
                           seed=args.seed)  # fmt: skip
    if args.input_len is not None:
        raise ValueError("input_len must not be given with dataset: its prompts are as long as they are")
    if args.url is None and args.model is None:
        raise ValueError("dataset must come with url or model: its texts need a tokenizer, and a shape has none")
    return file_work(args.dataset, args.output_len, args.num_requests, args.seed)


def measured(args: argparse.Namespace, work: Work, loads: Sequence[Arrivals]) -> Report:
    """An engine in this process, or the server at --url."""
    goals = parse_goals(args.goodput)
    return (_run_here if args.url is None else _run_there)(args, work, loads, goals)


def _run_here(args: argparse.Namespace, work: Work, loads: Sequence[Arrivals], goals: dict[str, float]) -> Report:
    if args.api_key is not None:
        raise ValueError("api_key must be given with url: an engine in this process asks for none")
    with source(args) as model:
        server = InProcessServer(model, engine_options(args), has_tokenizer=args.model is not None)
        return run(server, work, loads, command=command_line(args), goals=goals, rounds=args.rounds)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """What add_model() and add_engine_arguments() were given for the engine, but for the model."""
    options = {name: getattr(args, name) for name in ENGINE if name not in HERE and name in args}
    return options | {"dtype": args.dtype, "device": args.device, "seed": args.seed}


def _run_there(args: argparse.Namespace, work: Work, loads: Sequence[Arrivals], goals: dict[str, float]) -> Report:
    for name in [name for name, unset in HERE.items() if getattr(args, name) != unset] + [
        name for name in ENGINE if name in args and name not in HERE and name != "seed"
    ]:
        raise ValueError(f"{name} must not be given with url: the server at {args.url} has its own")
    from folovllm.bench.http_server import HttpServer

    server = HttpServer(args.url, args.api_key)
    args.neighbours = None  # to which the server, which is what is measured, would be one
    try:
        return run(server, work, loads, command=command_line(args), goals=goals, rounds=args.rounds)
    except RuntimeError as error:
        raise ValueError(f"the server at {args.url} refused: {error}") from error


def shifted(requests: Sequence[LoadRequest], by: int) -> list[LoadRequest]:
    """Other ids in each load, so that what the one before left in the cache of prefixes helps none. A text stays as it
    is: it was given to be measured."""
    return [
        request if isinstance(request.prompt, str) else replace(request, prompt=[each + by for each in request.prompt])
        for request in requests
    ]


async def measure(
    server: Server, requests: Sequence[LoadRequest], arrivals: Arrivals, goals: dict[str, float], seed: int
) -> tuple[Row, list[str]]:
    """One load, once: its row, and what was wrong with requests that failed."""
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
    row |= cache_row(before, after, max([*peaks, after.kv_usage if after else 0.0]))
    return row, [answer.problem for answer in answers if answer.problem is not None]


async def _watch(server: Server, peaks: list[float]) -> None:
    while True:
        await asyncio.sleep(server.poll_seconds)
        now = await server.counters()
        if now is not None:
            peaks.append(now.kv_usage)


async def measure_in_turn(
    server: Server,
    work: Work,
    loads: Sequence[Arrivals],
    rounds: int,
    goals: dict[str, float],
    tick: Callable[[str], None],
    found: Callable[[int, Row, list[str]], None],
) -> None:
    """The loads take turns. `found` is told of each: its number, and what measure() gives; -1 is the warm-up."""
    await server.start()
    try:
        tick("warm-up")
        few = [replace(request, max_tokens=min(request.max_tokens, 4)) for request in work.requests[:WARM_UP]]
        found(-1, *await measure(server, few, Arrivals(), {}, work.seed))
        for turn in range(rounds):
            for number, load in enumerate(loads):
                tick(f"round {turn + 1}/{rounds}: {load.describe()}")
                prompts = shifted(work.requests, 1 + turn * len(loads) + number)
                found(number, *await measure(server, prompts, load, goals, work.seed))
    finally:
        await server.stop()


def run(
    server: Server,
    work: Work,
    loads: Sequence[Arrivals],
    *,
    command: str,
    goals: dict[str, float] | None = None,
    rounds: int = 1,
) -> Report:
    """Raises:
    ValueError: a wrong option.
    OSError, RuntimeError: there is no such server, or it refuses.
    """
    require_at_least(1, rounds=rounds, loads=len(loads))
    goals = goals or {}
    measured: list[list[Row]] = [[] for _ in loads]
    problems: list[str] = []

    def found(number: int, row: Row, failures: list[str]) -> None:
        if number >= 0:
            measured[number].append(row)
            problems.extend(failures)

    with progress_bar(1 + rounds * len(loads)) as tick:
        asyncio.run(measure_in_turn(server, work, loads, rounds, goals, tick, found))
    notes = [f"{medians(rounds, 'round')}, after {WARM_UP} requests to warm up. Seed {work.seed}."]
    if work.has_texts:
        notes.append("The same texts in each load: a server that keeps prefixes finds them from the second on.")
    if goals:
        text = ", ".join(f"{name} within {limit:g} ms" for name, limit in goals.items())
        notes.append(f"Goodput counts requests with {text}.")
    notes.append("ITL is between two outputs of a stream; TPOT is a request's time after its first, per token.")
    notes.append(f"kv peak: the fullest that was seen, with a look every {server.poll_seconds * 1e3:g} ms.")
    notes += [f"failed: {problem}" for problem in dict.fromkeys(problems)]
    title = f"{server.label}: {work.what}"
    return report_of(title, measured, command=command, notes=notes, details={"goals_ms": goals})


def report_of(
    title: str, measured: Sequence[list[Row]], *, command: str, notes: list[str], details: dict[str, Any] | None = None
) -> Report:
    """A row for each list of rows, of all rounds; what is None in all of them has no column."""
    rows, samples = [_median_row(rounds) for rounds in measured], [_samples(rounds) for rounds in measured]
    columns = [column for column in rows[0] if any(row[column] is not None for row in rows)]
    rows = [{column: row[column] for column in columns} for row in rows]
    return Report("serve-load", title, command, columns, rows, notes, details=details or {}, samples=samples)


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
