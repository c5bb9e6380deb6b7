"""`folovllm bench scheduler`. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import add_output, add_rounds, add_seed, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "Requests through the scheduler with no model: what deciding costs, however long the line."
    command = kinds.add_parser("scheduler", help="the scheduler alone: us per token", description=text)
    text = "requests that wait; the first is what growth is measured from"
    command.add_argument("--waiting", type=int, nargs="+", default=[1_000, 10_000, 100_000], help=text)
    command.add_argument("--steps", type=int, metavar="N", default=500, help="measured steps of a round")
    add_rounds(command, default=5)
    add_seed(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import scheduler

    options = {name: getattr(args, name) for name in ("steps", "rounds", "seed")}
    return show(args, scheduler.run(args.waiting, command=command_line(args), **options))
