"""`folovllm bench latency`. vLLM: entrypoints/cli/benchmark/latency.py"""

from __future__ import annotations

import argparse
from typing import Any

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


def add_parser(kinds: Any) -> None:
    text = "One request at a time: time to first token, time between tokens, share of the memory bandwidth."
    command = kinds.add_parser("latency", help="one request at a time: ms per token", description=text)
    add_model(command)
    command.add_argument("--peer", choices=["hf"], help="in turn with Hugging Face's generate")
    command.add_argument("--input-len", type=int, metavar="N", default=128, help="prompt tokens of a request")
    command.add_argument("--output-len", type=int, metavar="N", default=32, help="new tokens of a request")
    add_rounds(command)
    add_seed(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import latency
    from folovllm.bench.workload import dtype_of

    with source(args) as model:
        report = latency.run(
            model,
            command=command_line(args),
            dtype=dtype_of(model, args.dtype, args.device),
            peer=args.peer,
            device=args.device,
            input_len=args.input_len,
            output_len=args.output_len,
            rounds=args.rounds,
            seed=args.seed,
        )
        return show(args, report)
