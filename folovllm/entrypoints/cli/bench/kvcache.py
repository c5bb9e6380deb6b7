"""`folovllm bench kvcache`. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import add_output, add_source, command_line, prepare, show


def add_parser(kinds: Any) -> None:
    text = "What kv_cache_dtype='fp8' changes in a model's log-probabilities and likeliest tokens, on a CPU."
    command = kinds.add_parser("kvcache", help="the error of a KV cache in 8 bits", description=text)
    add_source(command)
    command.add_argument("--texts", type=int, metavar="N", default=16, help="texts that each engine reads")
    command.add_argument("--length", type=int, metavar="N", default=128, help="tokens of each of them")
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.bench import kv_cache_error
    from folovllm.bench.workload import bench_model

    with bench_model(args.model, args.shape) as model:
        report = kv_cache_error.run(model, command=command_line(args), texts=args.texts, length=args.length)
        return show(args, report)
