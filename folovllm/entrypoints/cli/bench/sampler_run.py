"""`folovllm bench sampler --end-to-end`: a whole run with naive sampling and with ours. vLLM: none"""

from __future__ import annotations

import argparse
from dataclasses import replace

from folovllm.bench.preset_draws import PRESETS
from folovllm.entrypoints.cli.bench import sampler
from folovllm.entrypoints.cli.bench.common import add_model, command_line, prepare, show, source

PRESET = "gpt2-sampling"


def extend(commands: dict[str, argparse.ArgumentParser]) -> None:
    command = commands["sampler"]
    text = f"whole runs of the preset {PRESET} instead of single steps: naive sampling, then ours, in turn"
    command.add_argument("--end-to-end", action="store_true", help=text)
    group = command.add_argument_group("with --end-to-end")
    add_model(group)
    group.add_argument("--num-requests", type=int, metavar="N", help=f"default: {PRESETS[PRESET].num_requests}")
    group.add_argument("--output-len", type=int, metavar="N", help=f"default: {PRESETS[PRESET].longest_output}")
    command.set_defaults(run=run, shape="gpt2-sized")


def run(args: argparse.Namespace) -> int:
    given = {"num_requests": args.num_requests, "longest_output": args.output_len}
    given = {field: value for field, value in given.items() if value is not None}
    if not args.end_to_end:
        for field in [
            *given,
            *(name for name in ("model", "device", "load_format") if getattr(args, name) is not None),
        ]:
            raise ValueError(f"{field} must come with end_to_end: a step of the sampler alone has no model")
        return sampler.run(args)
    prepare(args)
    from folovllm.bench import sampler_run
    from folovllm.bench.workload import dtype_of

    preset = replace(PRESETS[PRESET], seed=args.seed, **given)
    with source(args) as model:
        report = sampler_run.run(
            model,
            preset,
            command=command_line(args),
            dtype=dtype_of(model, args.dtype, args.device),
            device=args.device,
            rounds=args.rounds,
        )
        return show(args, report)
