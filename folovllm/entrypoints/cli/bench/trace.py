"""`folovllm bench trace`

vLLM: none
"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.bench.shapes import SHAPES
from folovllm.entrypoints.cli.bench.common import add_output, add_rounds, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "Decode steps with a tracer and without, in turn: what --trace costs."
    command = kinds.add_parser("trace", help="what tracing costs a step", description=text)
    command.add_argument("--model", metavar="MODEL", help="a folder or a hub id (default: the model that ships here)")
    command.add_argument("--shape", choices=list(SHAPES), help="random weights in this shape instead, no download")
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="sequences")
    command.add_argument("--steps", type=int, metavar="N", default=100, help="measured steps of a round, of each kind")
    add_rounds(command, default=6)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import trace_cost
    from folovllm.bench.workload import bench_model

    options = {"command": command_line(args), "steps": args.steps, "rounds": args.rounds}
    if args.model is None and args.shape is None:
        return show(args, trace_cost.run(args.batch_sizes, **options))
    if args.model is not None and args.shape is not None:
        raise ValueError("--model and --shape must not be given together: a shape has random weights")
    with bench_model(args.model, args.shape or "") as model:
        return show(args, trace_cost.run(args.batch_sizes, model=model, **options))
