"""`folovllm bench serve-load`

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

from folovllm.config import CacheConfig, ModelConfig, SchedulerConfig
from folovllm.entrypoints.cli.bench.common import (
    add_model,
    add_output,
    add_rounds,
    add_seed,
    command_line,
    prepare,
    show,
    source,
)
from folovllm.entrypoints.cli.bench.throughput_preset import add_preset, preset_of
from folovllm.entrypoints.cli.parser import add_engine_arguments

SIZES = {"num_requests": 64, "input_len": 64, "output_len": 64}
ENGINE = [field.name for config in (ModelConfig, CacheConfig, SchedulerConfig) for field in dataclasses.fields(config)]
# Said of an engine in this process, with what they are where they are not given.
HERE = {"model": None, "dtype": "auto", "device": None, "load_format": None}


def add_parser(kinds: Any) -> None:
    text = "An engine, or a server that runs, under load: TTFT, TPOT, ITL and goodput, as its clients see them."
    command = kinds.add_parser("serve-load", help="an engine or a server under load", description=text)
    text = "ask the server at this address, such as http://127.0.0.1:8000; without it an engine is made in this process"
    command.add_argument("--url", help=text)
    command.add_argument("--api-key", metavar="KEY", help="the key that the server asks for")
    add_model(command)
    add_preset(command)
    text = (
        'requests of a file: a line {"prompt": "a text", "output_tokens": N} for each, as vllm bench serve reads them'
    )
    command.add_argument("--dataset", type=Path, metavar="FILE", help=text)
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", help="of each load (default: 64)")
    command.add_argument("--input-len", type=int, metavar="N", help="prompt tokens of a request (default: 64)")
    command.add_argument("--output-len", type=int, metavar="N", help="new tokens of a request (default: 64)")
    text = (
        "clients that ask anew when they are answered: one load for each number (default: 1 and 8, or a preset's own)"
    )
    command.add_argument(
        "--max-concurrency", "--concurrency", type=int, nargs="+", action="extend", metavar="N", help=text
    )
    text = "requests a second at random moments: one load for each number; inf: all at once"
    command.add_argument("--request-rate", type=float, nargs="+", action="extend", metavar="X", help=text)
    text = "of the gaps between arrivals: 1 is Poisson, less comes in clumps, more is more even"
    command.add_argument("--burstiness", type=float, metavar="X", help=text)
    text = "count requests that are as fast as this, in ms: ttft:X, tpot:X, e2el:X"
    command.add_argument("--goodput", nargs="+", action="extend", default=[], metavar="NAME:MS", help=text)
    text = "instead of the loads' rows: each part of a request's way through the engine in this process"
    command.add_argument("--breakdown", action="store_true", help=text)
    text = "in turn with another client of the server, on the same dataset: do the two measure the same?"
    command.add_argument("--peer", choices=["vllm"], help=text)
    text = "the Python that has vllm and pandas (default: what FOLOVLLM_VLLM_PYTHON names)"
    command.add_argument("--peer-python", metavar="PATH", help=text)
    add_rounds(command, default=1)
    add_seed(command)
    add_output(command)
    add_engine_arguments(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from folovllm.bench.metrics import parse_goals
    from folovllm.bench.serve_load import Work

    goals = parse_goals(args.goodput)
    given = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    if args.dataset is None:
        work = Work(**given, seed=args.seed, preset=None if args.preset is None else preset_of(args))
    else:
        work = Work(seed=args.seed, given=_dataset(args))
    loads = loads_of(args, work)
    _check_peer(args)
    prepare(args)
    if args.url is None:
        return _run_here(args, work, loads, goals)
    return _run_there(args, work, loads, goals)


def _dataset(args: argparse.Namespace) -> Any:
    """The first num_requests of the file. Raises ValueError: an option that says otherwise what is asked, or a line."""
    from folovllm.bench.serve_prompts import read_prompts

    if args.preset is not None:
        raise ValueError("dataset must not be given with preset: each brings its own prompts")
    if args.input_len is not None:
        raise ValueError("input_len must not be given with dataset: its prompts are as long as they are")
    if args.url is None and args.model is None:
        raise ValueError("dataset must come with url or model: its texts need a tokenizer, and a shape has none")
    found = read_prompts(args.dataset, args.output_len)
    wanted = len(found) if args.num_requests is None else args.num_requests
    if not 1 <= wanted <= len(found):
        raise ValueError(f"num_requests must be in [1, {len(found)}], what {args.dataset} has, got {wanted}")
    return found[:wanted]


def _check_peer(args: argparse.Namespace) -> None:
    if args.peer is None and args.peer_python is not None:
        raise ValueError("peer_python must come with peer: add --peer vllm")
    if args.peer is not None and (args.url is None or args.dataset is None):
        raise ValueError("peer must come with url and dataset: both clients ask one server, with one file's prompts")


def loads_of(args: argparse.Namespace, work: Any) -> list[Any]:
    """Closed loops, then rates. Raises ValueError: a wrong number."""
    from folovllm.bench.arrivals import Arrivals

    clients, rates, preset = args.max_concurrency or [], args.request_rate or [], work.preset
    shape = 1.0 if args.burstiness is None else args.burstiness
    if args.burstiness is not None and not rates:
        raise ValueError(f"burstiness must come with a request_rate, got {shape:g} and none: add --request-rate X")
    loads = [Arrivals(max_concurrency=number) for number in clients]
    loads += [Arrivals(rate, 1.0 if math.isinf(rate) else shape) for rate in rates]
    if not loads and preset is not None:
        return [Arrivals(preset.request_rate, preset.burstiness)]
    return loads or [Arrivals(max_concurrency=1), Arrivals(max_concurrency=8)]


def _run_here(args: argparse.Namespace, work: Any, loads: list[Any], goals: dict[str, float]) -> int:
    if args.api_key is not None:
        raise ValueError("api_key must be given with url: an engine in this process asks for none")
    from folovllm.bench import serve_load
    from folovllm.bench.breakdown import Breakdown
    from folovllm.bench.in_process import InProcessServer

    options = {name: getattr(args, name) for name in ENGINE if name not in HERE and name in args}
    options |= {"dtype": args.dtype, "device": args.device, "seed": args.seed}
    breakdown = Breakdown() if args.breakdown else None
    with source(args) as model:
        server = InProcessServer(model, options, has_tokenizer=args.model is not None, breakdown=breakdown)
        report = serve_load.run(
            server,
            work,
            loads,
            command=command_line(args),
            goals=goals,
            rounds=args.rounds,
            breakdown=breakdown,
        )
        return show(args, report)


def _run_there(args: argparse.Namespace, work: Any, loads: list[Any], goals: dict[str, float]) -> int:
    for name in [name for name, unset in HERE.items() if getattr(args, name) != unset] + [
        name for name in ENGINE if name in args and name not in HERE and name != "seed"
    ]:
        raise ValueError(f"{name} must not be given with url: the server at {args.url} has its own")
    if args.breakdown:
        raise ValueError("breakdown must not be given with url: it looks into the engine, which is in another process")
    from folovllm.bench import serve_load
    from folovllm.bench.http_server import HttpServer

    server = HttpServer(args.url, args.api_key)
    pid = server.pid()
    if pid is not None:
        args.neighbours.include(pid)  # it is what is measured, and no neighbour
    shared: dict[str, Any] = {"command": command_line(args), "goals": goals}
    if args.peer is not None:
        return show(args, _compare(args, server, work.draw(), loads, shared))
    try:
        report = serve_load.run(server, work, loads, rounds=args.rounds, **shared)
    except RuntimeError as error:
        raise ValueError(f"the server at {args.url} refused: {error}") from error
    return show(args, report)


def _compare(args: argparse.Namespace, server: Any, requests: Any, loads: list[Any], shared: dict[str, Any]) -> Any:
    from folovllm.bench import serve_peer

    try:
        with serve_peer.VLLMClient(args.peer_python, args.api_key) as client:
            return serve_peer.run(server, client, requests, loads, pairs=args.rounds, seed=args.seed, **shared)
    except RuntimeError as error:
        raise ValueError(f"the clients of {args.url} cannot be compared: {error}") from error
