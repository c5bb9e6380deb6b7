"""`folovllm bench ablate`: the engine without one of the things that make it fast, each in turn. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import add_model, add_output, add_rounds, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "Leave out one of the things that make the engine fast, each in turn: what is it worth here?"
    command = kinds.add_parser("ablate", help="without each fast thing in turn: what is it worth?", description=text)
    add_model(command)
    text = "only these (a wrong name is answered with all)"
    command.add_argument("--features", nargs="+", default=[], metavar="NAME", help=text)
    text = "requests in each round (default: 8)"
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", default=8, help=text)
    command.add_argument("--input-len", type=int, metavar="N", default=128, help="prompt tokens (default: 128)")
    command.add_argument("--output-len", type=int, metavar="N", default=32, help="new tokens (default: 32)")
    text = "tokens with which all prompts begin alike (default: half of them)"
    command.add_argument("--shared-len", type=int, metavar="N", help=text)
    add_rounds(command, default=6)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import ablate
    from folovllm.bench.workload import bench_model, dtype_of

    with bench_model(args.model, args.shape) as model:
        report = ablate.run(
            model,
            command=command_line(args),
            dtype=dtype_of(model, args.dtype, args.device),
            device=args.device,
            features=args.features,
            num_requests=args.num_requests,
            input_len=args.input_len,
            output_len=args.output_len,
            shared_len=args.shared_len,
            rounds=args.rounds,
        )
        return show(args, report)
