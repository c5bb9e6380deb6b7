"""`folovllm bench throughput --preset nano-vllm`: a workload for which other projects publish figures. vLLM: none"""

from __future__ import annotations

import argparse

from folovllm.entrypoints.cli.bench import throughput
from folovllm.entrypoints.cli.bench.common import command_line, prepare, show, source

# A preset's field -> the option that overrides it.
FIELDS = {"num_requests": "num_requests", "longest_prompt": "input_len", "longest_output": "output_len"}


def extend(commands: dict[str, argparse.ArgumentParser]) -> None:
    command = commands["throughput"]
    text = (
        "a workload that others publish: 256 sequences of 100 to 1,024 tokens in and out; --num-requests, --input-len "
        "and --output-len (of the longest) override its numbers"
    )
    command.add_argument("--preset", choices=["nano-vllm"], help=text)
    text = "of a preset: leave out one of the things that make it fast, or several (a wrong name is answered with all)"
    command.add_argument("--without", nargs="+", default=[], metavar="WHAT", help=text)
    text = "of a preset: the share of a GPU's memory for this engine (default: 0.9); less leaves room for a peer"
    command.add_argument("--gpu-memory-utilization", type=float, metavar="X", help=text)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    share = args.gpu_memory_utilization
    if args.preset is None:
        for name, is_given in (("without", bool(args.without)), ("gpu_memory_utilization", share is not None)):
            if is_given:
                raise ValueError(f"{name} must be given with a preset: add --preset nano-vllm")
        return throughput.run(args)
    for name, given in (("mixed", args.mixed), ("peer_batch_size", args.peer_batch_size != 1)):
        if given:
            raise ValueError(f"{name} must not be given with preset {args.preset!r}, which has its own lengths")
    prepare(args)
    from dataclasses import replace

    from folovllm.bench import presets
    from folovllm.bench.workload import dtype_of

    given = {field: getattr(args, name) for field, name in FIELDS.items() if getattr(args, name) is not None}
    preset = replace(presets.PRESETS[args.preset], **given)
    with source(args) as model:
        report = presets.run(
            model,
            preset,
            command=command_line(args),
            dtype=dtype_of(model, args.dtype, args.device),
            device=args.device,
            peers=throughput.peers(args),
            peer_options=vars(args),
            rounds=args.rounds,
            without=args.without,
            options={} if share is None else {"gpu_memory_utilization": share},
        )
        return show(args, report)
