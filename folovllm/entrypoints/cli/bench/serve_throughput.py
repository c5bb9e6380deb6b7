"""`folovllm bench serve-throughput`: what the server costs, against the engine alone. vLLM: none"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.entrypoints.cli.bench.common import (
    add_model,
    add_output,
    add_rounds,
    command_line,
    prepare,
    show,
)


def add_parser(kinds: Any) -> None:
    text = "One load, given to the engine without a server and over HTTP in turn: what the server costs."
    command = kinds.add_parser("serve-throughput", help="the engine alone against HTTP", description=text)
    add_model(command)
    command.add_argument("--num-requests", "--num-prompts", type=int, default=64, metavar="N", help="in each round")
    command.add_argument("--input-len", type=int, default=64, metavar="N", help="prompt tokens of a request")
    command.add_argument("--output-len", type=int, default=64, metavar="N", help="new tokens of a request")
    command.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="most sequences in a step")
    command.add_argument("--num-kv-blocks", type=int, metavar="N", help="blocks of the KV cache")
    add_rounds(command)
    add_output(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    from folovllm.entrypoints.cli.serve import require_packages

    require_packages()
    from folovllm.bench import serve_throughput
    from folovllm.bench.workload import bench_model, dtype_of
    from folovllm.entrypoints.openai.launch import in_thread

    options = {} if args.num_kv_blocks is None else {"num_kv_blocks": args.num_kv_blocks}
    with bench_model(args.model, args.shape) as model:
        report = serve_throughput.run(
            model,
            in_thread,
            command=command_line(args),
            dtype=dtype_of(model, args.dtype, args.device),
            device=args.device,
            num_requests=args.num_requests,
            input_len=args.input_len,
            output_len=args.output_len,
            max_num_seqs=args.max_num_seqs,
            rounds=args.rounds,
            options=options,
        )
    return show(args, report)
