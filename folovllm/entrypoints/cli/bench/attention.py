"""`folovllm bench attention`. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.bench.shapes import DEFAULT_SHAPE, SHAPES
from folovllm.entrypoints.cli.bench.common import add_output, add_rounds, add_seed, command_line, prepare, show

DTYPES = ["float32", "bfloat16", "float16"]


def add_parser(kinds: Any) -> None:
    text = "One layer's attention in a decode step, or in prefill: through block tables against a contiguous cache."
    command = kinds.add_parser("attention", help="one layer's attention: paged against contiguous", description=text)
    command.add_argument("--shape", choices=list(SHAPES), default=DEFAULT_SHAPE, help="heads of this shape")
    command.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES[:2], help="of the cache")
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8], help="sequences")
    command.add_argument("--contexts", type=int, nargs="+", default=[256, 1024], help="tokens of each")
    command.add_argument("--block-size", type=int, metavar="N", default=16, help="tokens of a block")
    text = "the paged backend, or 'all' that can run; when not given, the one that an engine would pick"
    command.add_argument("--backend", help=text)
    command.add_argument("--prefill", action="store_true", help="whole prompts of --contexts tokens: TFLOP/s")
    command.add_argument("--device", help="cpu, cuda or cuda:<index>")
    add_rounds(command, default=5)
    add_seed(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import attention

    names = ("shape", "batch_sizes", "contexts", "block_size", "backend", "device", "rounds", "prefill", "seed")
    options = {name: getattr(args, name) for name in names}
    return show(args, attention.run(command=command_line(args), dtypes=args.dtypes, **options))
