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
from folovllm.bench.contestant import make_engine
from folovllm.bench.load_requests import CacheCounters, LoadRequest, Server, random_requests, read_requests
from folovllm.bench.metrics import RequestTimes, load_row, parse_goals
from folovllm.bench.options import add_common, add_model, add_number, source
from folovllm.bench.report import Line, Report, Row, medians
from folovllm.bench.workload import BenchModel, progress_bar
from folovllm.core.observer import EngineObserver
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.engine.async_llm import AsyncLLM
from folovllm.engine.defaults import LAYERS
from folovllm.entrypoints.cli.parser import add_engine_arguments
from folovllm.sampling_params import SamplingParams

USUAL = [Arrivals(max_concurrency=1), Arrivals(max_concurrency=8)]
WARM_UP = 2  # requests before the first load, which find everything loaded and nothing compiled
ENGINE = [field.name for config in LAYERS for field in fields(config)]
# Said of an engine in this process, with what they are where they are not given.
HERE = {"model": None, "dtype": "auto", "device": None, "load_format": None}


class InProcessServer(EngineObserver):
    """An AsyncLLM, asked as by a program that embeds it. Raises ValueError: as AsyncLLM."""

    poll_seconds = 0.02

    def __init__(self, model: BenchModel, options: dict[str, Any]) -> None:
        engine = make_engine(model, **options)
        engine.observers.append(self)
        self.llm = AsyncLLM.from_engine(engine)
        self.label = f"{model.label}, in this process"
        self._names = 0
        self._usage = 0.0  # the most since it was last asked for

    async def start(self) -> None:
        """It runs from its making on."""

    async def stop(self) -> None:
        await self.llm.shutdown()

    def usable(self, ids: list[int]) -> list[int]:
        vocab_size = self.llm.engine.input_processor.vocab_size
        return [each % vocab_size for each in ids]

    def scheduled(self, output: SchedulerOutput) -> None:  # of each step: outputs may be handed out together
        pool = self.llm.engine.scheduler.kv.pool
        self._usage = max(self._usage, pool.num_used / pool.num_blocks)

    async def counters(self) -> CacheCounters:
        stats, usage, self._usage = self.llm.stats(), self._usage, 0.0
        return CacheCounters(usage, stats.prefix_cache_queries, stats.prefix_cache_hits, stats.preemptions)

    async def ask(self, request: LoadRequest) -> RequestTimes:
        self._names += 1
        has_text = self.llm.engine.tokenizer is not None
        params = SamplingParams(**request.sampling, max_tokens=request.max_tokens, ignore_eos=True, detokenize=has_text)
        times, began = RequestTimes(), time.perf_counter()
        try:
            async for output in self.llm.generate(request.prompt, params, f"load-{self._names}"):
                now, num_tokens = time.perf_counter(), len(output.outputs[0].token_ids)
                if num_tokens > times.num_tokens:
                    times.arrivals.append(now - began)
                    times.num_tokens = num_tokens
                if output.metrics is not None and output.metrics.first_scheduled_time is not None:
                    times.queue = output.metrics.first_scheduled_time - output.metrics.arrival_time
        except (ValueError, RuntimeError) as error:
            times.problem = f"{type(error).__name__}: {error}"
        times.end(began)
        return times


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "An engine, or a server that runs, under load: TTFT, TPOT, ITL and goodput, as its clients see them."
    command.description = text
    text = "ask the server at this address, such as http://127.0.0.1:8000 (default: an engine in this process)"
    command.add_argument("--url", help=text)
    command.add_argument("--api-key", metavar="KEY", help="the key that the server asks for (default: none)")
    add_model(command)
    text = 'requests of a file, a line {"prompt": "a text", "output_tokens": N} for each (default: random ones)'
    command.add_argument("--dataset", type=Path, metavar="FILE", help=text)
    add_number(command, "--num-requests", "--num-prompts", help="in each load (default: 64)")
    add_number(command, "--input-len", help="prompt tokens of a request (default: 64)")
    add_number(command, "--output-len", help="new tokens of a request (default: 64)")
    add_arrivals(command)
    text = "count requests that are as fast as this, in ms: ttft:X, tpot:X, e2el:X (default: none)"
    command.add_argument("--goodput", nargs="+", action="extend", default=[], metavar="NAME:MS", help=text)
    add_common(command, rounds=1)
    add_engine_arguments(command)


def check_args(args: argparse.Namespace) -> None:
    """Raises ValueError: an option to look into an engine that is in another process."""
    for name in ("trace", "nvtx", "watch"):
        if args.url is not None and getattr(args, name):
            raise ValueError(
                f"--{name} must not be given with --url: the engine is in the server's process. Start that one with "
                "`folovllm serve --trace FILE`"
            )


def run(args: argparse.Namespace) -> Report:
    """Raises ValueError: options that do not go together, or a line of the file that is no request."""
    loads = arrivals_of(args) or USUAL
    if args.dataset is None:
        count, prompt, output = (size or 64 for size in (args.num_requests, args.input_len, args.output_len))
        what = f"{count} requests, {prompt} tokens in, {output} out"
        return measured(args, random_requests(count, prompt, output, args.seed), what, loads)
    if args.input_len is not None:
        raise ValueError("input_len must not be given with dataset: its prompts are as long as they are")
    if args.url is None and args.model is None:
        raise ValueError("dataset must come with url or model: its texts need a tokenizer, and a shape has none")
    requests = read_requests(args.dataset, args.output_len, args.num_requests)
    num_tokens = sum(each.max_tokens for each in requests)
    return measured(args, requests, f"{len(requests)} requests of a file, {num_tokens:,} tokens out", loads)


def measured(args: argparse.Namespace, requests: Sequence[LoadRequest], what: str, loads: Sequence[Arrivals]) -> Report:
    """An engine in this process, or the server at --url. `what`: the requests in words."""
    goals, given = parse_goals(args.goodput), {name: getattr(args, name) for name in ENGINE if name in args}
    if args.url is None:
        if args.api_key is not None:
            raise ValueError("api_key must be given with url: an engine in this process asks for none")
        with source(args) as model:
            options = {name: value for name, value in given.items() if name not in ("model", "load_format")}
            options |= {"dtype": args.dtype, "skip_tokenizer_init": args.model is None}
            return _report(args, InProcessServer(model, options), requests, what, loads, goals)
    wrong = [name for name, value in given.items() if name != "seed" and (name not in HERE or value != HERE[name])]
    if wrong:
        raise ValueError(f"{wrong[0]} must not be given with url: it is the server's at {args.url}")
    from folovllm.bench.http_server import HttpServer

    args.neighbours = None  # to which the server, which is what is measured, would be one
    try:
        return _report(args, HttpServer(args.url, args.api_key), requests, what, loads, goals)
    except RuntimeError as error:
        raise ValueError(f"the server at {args.url} refused: {error}") from error


def _report(
    args: argparse.Namespace, server: Server, requests: Sequence[LoadRequest], what: str, loads: Sequence[Arrivals],
    goals: dict[str, float],
) -> Report:  # fmt: skip
    """A row for each load. Raises OSError, RuntimeError: there is no such server, or it refuses."""
    with progress_bar(1 + args.rounds * len(loads)) as tick:
        rows, problems = asyncio.run(_measure_in_turn(server, requests, loads, args, goals, tick))
    notes = [f"{medians(args.rounds, 'round')}, after {WARM_UP} requests to warm up. Seed {args.seed}."]
    if isinstance(requests[0].prompt, str):
        notes.append("The same texts in each load: a server that keeps prefixes finds them from the second on.")
    if goals:
        text = ", ".join(f"{name} within {limit:g} ms" for name, limit in goals.items())
        notes.append(f"Goodput counts requests with {text}.")
    notes.append("ITL is between two outputs of a stream; TPOT is a request's time after its first, per token.")
    notes.append(f"kv peak: the fullest that was seen, with a look every {server.poll_seconds * 1e3:g} ms.")
    notes += [f"failed: {problem}" for problem in dict.fromkeys(problems)]
    columns = [column for column in rows[0][0] if any(row[column] is not None for each in rows for row in each)]
    title, details = f"{server.label}: {what}", {"goals_ms": goals}
    return Report.of(args, title, columns, list(map(_line, rows)), notes, details=details)


async def _measure_in_turn(
    server: Server, requests: Sequence[LoadRequest], loads: Sequence[Arrivals], args: argparse.Namespace,
    goals: dict[str, float], tick: Callable[[str], None],
) -> tuple[list[list[Row]], list[str]]:  # fmt: skip
    """The loads take turns: the rows of each, and what was wrong with requests that failed."""
    rows: list[list[Row]] = [[] for _ in loads]
    problems: list[str] = []
    await server.start()
    try:
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
    before, peaks = await server.counters(), [0.0]
    watching = asyncio.create_task(_watch(server, peaks)) if before is not None else None
    began = time.perf_counter()
    answers: list[RequestTimes] = await send(usable, server.ask, load, seed)
    seconds = time.perf_counter() - began
    if watching is not None:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    after = await server.counters()
    problems += [answer.problem for answer in answers if answer.problem is not None]
    row = {"load": load.describe(), **load_row(answers, seconds, goals)}
    return row | CacheCounters.row(before, after, max([*peaks, after.kv_usage if after else 0.0]))


async def _watch(server: Server, peaks: list[float]) -> None:
    while True:
        await asyncio.sleep(server.poll_seconds)
        if (now := await server.counters()) is not None:
            peaks.append(now.kv_usage)


def _line(rows: list[Row]) -> Line:
    """A row of all rounds: numbers that were measured in all of them are samples, counts the median of theirs."""
    samples = {key: [row[key] for row in rows] for key in rows[0] if all(isinstance(row[key], float) for row in rows)}
    facts = {key: value for key, value in rows[0].items() if key not in samples}
    for key in facts:
        if all(isinstance(row[key], int) for row in rows):
            facts[key] = round(statistics.median(row[key] for row in rows))
    return facts, samples
