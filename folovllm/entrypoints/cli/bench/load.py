"""`folovllm bench load`. vLLM: entrypoints/cli/benchmark/startup.py"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import add_output, add_source, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "Seconds and peak memory to load a checkpoint, in fresh processes."
    command = kinds.add_parser("load", help="loading: seconds and peak memory", description=text)
    add_source(command)
    command.add_argument("--peer", choices=["hf"], help="compare with Hugging Face's from_pretrained")
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="loads of each kind; medians are shown")
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import load

    with load.checkpoint(args.model, args.shape) as model:
        return show(args, load.run(model, command=command_line(args), peer=args.peer, rounds=args.rounds))
