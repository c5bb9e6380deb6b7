"""`folovllm bench invariance`. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import (
    add_output,
    add_rounds,
    add_source,
    command_line,
    prepare,
    show,
)

DTYPES = ("float32", "bfloat16")


def add_parser(kinds: Any) -> None:
    text = "What batch_invariant=True costs: decode steps and prompts, against an engine without it, on a CPU."
    command = kinds.add_parser("invariance", help="the cost of the same bits in any batch", description=text)
    add_source(command)
    command.add_argument("--dtypes", choices=DTYPES, nargs="+", default=list(DTYPES), help="one after another")
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="sequences that decode")
    command.add_argument("--context", type=int, metavar="N", default=128, help="prompt tokens of each of them")
    command.add_argument("--prompt-len", type=int, metavar="N", default=512, help="tokens of a prefill")
    command.add_argument("--steps", type=int, metavar="N", default=8, help="measured steps of a round")
    add_rounds(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import invariance
    from folovllm.bench.workload import bench_model

    options: dict[str, Any] = {
        name: getattr(args, name) for name in ("batch_sizes", "context", "prompt_len", "steps", "rounds")
    }
    with bench_model(args.model, args.shape) as model:
        return show(args, invariance.run(model, command=command_line(args), dtypes=args.dtypes, **options))
