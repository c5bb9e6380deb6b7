"""`folovllm bench serve-load`

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import add_output, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "A server that runs, under load: TTFT, TPOT, ITL and goodput, as its clients see them."
    command = kinds.add_parser("serve-load", help="a server under load, over HTTP", description=text)
    command.add_argument("--url", required=True, help="the server's address, such as http://127.0.0.1:8000")
    command.add_argument("--api-key", metavar="KEY", help="the key that it asks for")
    text = "clients that ask anew when they are answered; may be given again (default: 1, then 8)"
    command.add_argument("--concurrency", type=int, action="append", metavar="N", help=text)
    text = "requests a second at random moments (Poisson); may be given again"
    command.add_argument("--request-rate", type=float, action="append", metavar="X", help=text)
    command.add_argument("--num-requests", "--num-prompts", type=int, default=64, metavar="N", help="of each load")
    command.add_argument("--input-len", type=int, default=64, metavar="N", help="prompt tokens of a request")
    command.add_argument("--output-len", type=int, default=64, metavar="N", help="new tokens of a request")
    text = "count requests that are as fast as this, in ms: ttft:X, tpot:X or e2e:X; may be given again"
    command.add_argument("--goodput", type=goal, action="append", default=[], metavar="NAME:MS", help=text)
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the prompts and the arrivals")
    add_output(command)
    command.set_defaults(run=run)


def goal(text: str) -> tuple[str, float]:
    from folovllm.bench.serve_load import GOALS

    name, _, limit = text.partition(":")
    try:
        value = float(limit)
    except ValueError:
        value = 0.0
    if name not in GOALS or not value > 0:
        raise argparse.ArgumentTypeError(f"must be {', '.join(f'{g}:MS' for g in GOALS)}, got {text!r}")
    return name, value


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import serve_load

    try:
        report = serve_load.run(
            args.url,
            command=command_line(args),
            key=args.api_key,
            concurrency=args.concurrency,
            rates=args.request_rate,
            num_requests=args.num_requests,
            input_len=args.input_len,
            output_len=args.output_len,
            goals=dict(args.goodput),
            seed=args.seed,
        )
    except RuntimeError as error:
        raise ValueError(f"the server at {args.url} refused: {error}") from error
    return show(args, report)
