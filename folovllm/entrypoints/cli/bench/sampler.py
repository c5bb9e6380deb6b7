"""`folovllm bench sampler`. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import add_output, add_rounds, add_seed, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "Sampling from random logits: this engine's sampler against a full sort and scatter."
    command = kinds.add_parser("sampler", help="sampling: ms per step", description=text)
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="rows of logits")
    command.add_argument("--vocab-sizes", type=int, nargs="+", default=[50257, 151936], help="columns")
    add_rounds(command, default=5)
    add_seed(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import sampler

    options = {name: getattr(args, name) for name in ("rounds", "seed")}
    return show(args, sampler.run(args.batch_sizes, args.vocab_sizes, command=command_line(args), **options))
