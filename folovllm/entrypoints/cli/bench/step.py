"""`folovllm bench step`. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import add_output, add_rounds, add_seed, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "Decode steps of a full batch: the host's work before and after the model, against the model's own."
    command = kinds.add_parser("step", help="one decode step: host work against the model, ms", description=text)
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="sequences")
    command.add_argument("--steps", type=int, metavar="N", default=50, help="measured steps of a round")
    add_rounds(command)
    add_seed(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import step

    options = {name: getattr(args, name) for name in ("steps", "rounds", "seed")}
    return show(args, step.run(args.batch_sizes, command=command_line(args), **options))
