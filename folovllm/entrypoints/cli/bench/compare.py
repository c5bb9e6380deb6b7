"""`folovllm bench compare a.json b.json`: is the difference more than noise? vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "Compare two files that --json wrote: ratios with their spread, and which of them are more than noise."
    command = kinds.add_parser("compare", help="two results: ratios, and what of them is noise", description=text)
    command.add_argument("a", metavar="A.json", help="what was before")
    command.add_argument("b", metavar="B.json", help="what is now; a ratio is b over a")
    command.add_argument("--json", metavar="PATH", help="write the result here; - prints it, and no table")
    command.set_defaults(run=run, threads=None)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import compare

    return show(args, compare.run(args.a, args.b, command=command_line(args)))
