"""`folovllm bench timeline`. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import add_output, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "One decode step of 256 sequences, Qwen3-0.6B on a GPU, predicted from bytes and operations; runs anywhere."
    command = kinds.add_parser("timeline", help="one decode step on a GPU, predicted part by part", description=text)
    command.add_argument("--gpu", choices=["h200", "h100"], default="h200", help="for which one")
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import time_line

    return show(args, time_line.run(args.gpu, command=command_line(args)))
