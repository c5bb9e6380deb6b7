"""A server under load, seen from a client: how long the first token takes, how long each further one, and how many
requests were served as well as they should be.

    requests (a preset, or random ones)  ──▶  arrivals.send()  ──▶  server.ask()  ──▶  RequestTimes  ──▶  a row
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
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from folovllm.bench.arrivals import Arrivals, add_arrivals, arrivals_of, send
from folovllm.bench.breakdown import Breakdown
from folovllm.bench.load_request import LoadRequest, Server, cache_row
from folovllm.bench.metrics import RequestTimes, load_row, parse_goals
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed, command_line, source
from folovllm.bench.presets import add_preset, preset_of
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.serve_work import Work, read_prompts
from folovllm.bench.workload import progress_bar, require_at_least
from folovllm.config import CacheConfig, ModelConfig, SchedulerConfig
from folovllm.entrypoints.cli.parser import add_engine_arguments

USUAL = [Arrivals(max_concurrency=1), Arrivals(max_concurrency=8)]
WARM_UP = 2  # requests before the first load, which find everything loaded and nothing compiled
SIZES = {"num_requests": 64, "input_len": 64, "output_len": 64}
ENGINE = [field.name for config in (ModelConfig, CacheConfig, SchedulerConfig) for field in fields(config)]
# Said of an engine in this process, with what they are where they are not given.
HERE = {"model": None, "dtype": "auto", "device": None, "load_format": None}


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "An engine, or a server that runs, under load: TTFT, TPOT, ITL and goodput, as its clients see them."
    command.description = text
    text = "ask the server at this address, such as http://127.0.0.1:8000; without it an engine is made in this process"
    command.add_argument("--url", help=text)
    add_model(command)
    add_preset(command)
    command.add_argument("--input-len", type=int, metavar="N", help="prompt tokens of a request (default: 64)")
    add_load_arguments(command)
    text = "instead of the loads' rows: each part of a request's way through the engine in this process"
    command.add_argument("--breakdown", action="store_true", help=text)
    add_rounds(command, default=1)
    add_seed(command)
    add_output(command)
    add_engine_arguments(command)


def add_load_arguments(command: argparse.ArgumentParser) -> None:
    """What any client of a server is told."""
    command.add_argument("--api-key", metavar="KEY", help="the key that the server asks for")
    text = (
        'requests of a file: a line {"prompt": "a text", "output_tokens": N} for each, as vllm bench serve reads them'
    )
    command.add_argument("--dataset", type=Path, metavar="FILE", help=text)
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", help="of each load (default: 64)")
    command.add_argument("--output-len", type=int, metavar="N", help="new tokens of a request (default: 64)")
    add_arrivals(command)
    text = "count requests that are as fast as this, in ms: ttft:X, tpot:X, e2el:X"
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
    goals = parse_goals(args.goodput)
    given = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    if args.dataset is None:
        work = Work(**given, seed=args.seed, preset=None if args.preset is None else preset_of(args))
    else:
        if args.preset is not None:
            raise ValueError("dataset must not be given with preset: each brings its own prompts")
        if args.input_len is not None:
            raise ValueError("input_len must not be given with dataset: its prompts are as long as they are")
        if args.url is None and args.model is None:
            raise ValueError("dataset must come with url or model: its texts need a tokenizer, and a shape has none")
        work = Work(seed=args.seed, given=read_dataset(args))
    preset = work.preset
    usual = [Arrivals(preset.request_rate, preset.burstiness)] if preset is not None else USUAL
    loads = arrivals_of(args) or usual
    if args.url is None:
        return _run_here(args, work, loads, goals)
    return _run_there(args, work, loads, goals)


def read_dataset(args: argparse.Namespace) -> tuple[LoadRequest, ...]:
    """The first num_requests of the file. Raises ValueError: too many of them, or a line that is none."""
    found = read_prompts(args.dataset, args.output_len)
    wanted = len(found) if args.num_requests is None else args.num_requests
    if not 1 <= wanted <= len(found):
        raise ValueError(f"num_requests must be in [1, {len(found)}], what {args.dataset} has, got {wanted}")
    return found[:wanted]


def _run_here(args: argparse.Namespace, work: Work, loads: list[Arrivals], goals: dict[str, float]) -> Report:
    if args.api_key is not None:
        raise ValueError("api_key must be given with url: an engine in this process asks for none")
    from folovllm.bench.in_process import InProcessServer

    options = {name: getattr(args, name) for name in ENGINE if name not in HERE and name in args}
    options |= {"dtype": args.dtype, "device": args.device, "seed": args.seed}
    breakdown = Breakdown() if args.breakdown else None
    with source(args) as model:
        server = InProcessServer(model, options, has_tokenizer=args.model is not None, breakdown=breakdown)
        return run(
            server,
            work,
            loads,
            command=command_line(args),
            goals=goals,
            rounds=args.rounds,
            breakdown=breakdown,
        )


def _run_there(args: argparse.Namespace, work: Work, loads: list[Arrivals], goals: dict[str, float]) -> Report:
    for name in [name for name, unset in HERE.items() if getattr(args, name) != unset] + [
        name for name in ENGINE if name in args and name not in HERE and name != "seed"
    ]:
        raise ValueError(f"{name} must not be given with url: the server at {args.url} has its own")
    if args.breakdown:
        raise ValueError("breakdown must not be given with url: it looks into the engine, which is in another process")
    from folovllm.bench.http_server import HttpServer

    server = HttpServer(args.url, args.api_key)
    pid = server.pid()
    if pid is not None:
        args.neighbours.include(pid)  # it is what is measured, and no neighbour
    try:
        return run(server, work, loads, command=command_line(args), goals=goals, rounds=args.rounds)
    except RuntimeError as error:
        raise ValueError(f"the server at {args.url} refused: {error}") from error


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
    row |= cache_row(before, after, max([*peaks, after.kv_usage if after else 0.0]))
    found = breakdown.rows(row["load"], row["output_tokens_per_s"]) if breakdown is not None else []
    return Measured(row, found, [answer.problem for answer in answers if answer.problem is not None])


async def _watch(server: Server, peaks: list[float]) -> None:
    while True:
        await asyncio.sleep(server.poll_seconds)
        now = await server.counters()
        if now is not None:
            peaks.append(now.kv_usage)


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
