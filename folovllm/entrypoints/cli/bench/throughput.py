"""`folovllm bench throughput`. vLLM: entrypoints/cli/benchmark/throughput.py"""

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
    text = "Several requests at once: tokens per second in prefill, in decode and over all."
    command = kinds.add_parser("throughput", help="several requests: tokens/s", description=text)
    add_model(command)
    text = "take turns with hf (Hugging Face's generate) or another (a wrong name is answered with all); several: A,B"
    command.add_argument("--peer", action="append", default=[], dest="peers", metavar="PEER", help=text)
    text = "also let the peer take this many at a time"
    command.add_argument("--peer-batch-size", type=int, metavar="N", default=1, help=text)
    text = "lengths from an eighth of --input-len and --output-len up to them, instead of all the same"
    command.add_argument("--mixed", action="store_true", help=text)
    # None is "not given": the benchmark has its own defaults for these, and says so below.
    text = "requests in each round (default: 4)"
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", help=text)
    command.add_argument("--input-len", type=int, metavar="N", help="prompt tokens of a request (default: 32)")
    command.add_argument("--output-len", type=int, metavar="N", help="new tokens of a request (default: 32)")
    add_rounds(command)
    add_seed(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import throughput
    from folovllm.bench.workload import dtype_of

    names = ("num_requests", "input_len", "output_len")
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    with source(args) as model:
        report = throughput.run(
            model,
            command=command_line(args),
            dtype=dtype_of(model, args.dtype, args.device),
            device=args.device,
            peers=peers(args),
            peer_options=vars(args),
            mixed=args.mixed,
            peer_batch_size=args.peer_batch_size,
            rounds=args.rounds,
            seed=args.seed,
            **given,
        )
        return show(args, report)


def peers(args: argparse.Namespace) -> list[str]:
    return [name for names in args.peers for name in names.split(",")]
