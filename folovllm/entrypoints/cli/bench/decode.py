"""`folovllm bench decode`. vLLM: none"""

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
    text = "Decode steps at several batch sizes, as a share of what memory and arithmetic of this machine allow."
    command = kinds.add_parser("decode", help="decode steps: share of the roofline", description=text)
    add_model(command)
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64, 256], help="sequences")
    command.add_argument("--context", type=int, metavar="N", default=128, help="prompt tokens of each")
    command.add_argument("--steps", type=int, metavar="N", default=16, help="measured steps of a round")
    add_rounds(command)
    command.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs; on a CPU, layer by layer")
    add_seed(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import decode
    from folovllm.bench.workload import dtype_of

    names = ("batch_sizes", "context", "steps", "rounds", "device", "enforce_eager", "seed")
    options = {name: getattr(args, name) for name in names}
    with source(args) as model:
        dtype = dtype_of(model, args.dtype, args.device)
        return show(args, decode.run(model, command=command_line(args), dtype=dtype, **options))
