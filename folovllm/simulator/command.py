"""`folovllm bench simulate`

vLLM: none
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folovllm.bench.options import add_output, add_rounds, add_seed
from folovllm.utils.named_files import check_target

if TYPE_CHECKING:
    from folovllm.bench.report import Report
    from folovllm.simulator.load import Load
    from folovllm.simulator.report import Machine

MEASURED = "this"
MEASURED_BLOCKS = 2000
"""Blocks of the cache where the device is this machine and none are given."""
DESCRIPTION = (
    "The real scheduler and cache with a cost model where the model was: devices and models that are not here. "
    "Settings that take several values are simulated in each combination."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = DESCRIPTION
    group = command.add_argument_group("device and model")
    text = "h200, h100, a100, rtx-4090, laptop; this: measured now, on the real engine"
    group.add_argument("--device", default="h100", help=text)
    text = "a named shape such as llama-3.1-8b, a config.json, or a folder with one (default: llama-3.1-8b)"
    group.add_argument("--model", dest="shape_of", metavar="MODEL", help=text)
    text = "of weights and cache (default: bfloat16; float32 for this machine)"
    group.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help=text)
    group.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="devices that share each layer")
    group.add_argument("--step-overhead-us", type=float, metavar="X", help="beside products (default: the device's)")
    group.add_argument("--seq-overhead-us", type=float, metavar="X", help="of each sequence (default: the device's)")

    group = command.add_argument_group("load")
    group.add_argument("--load", default="chat", help="chat, documents, agents or batch")
    text = "a file with a JSON object a line: t, prompt_tokens, output_tokens, group, … (default: --load)"
    group.add_argument("--requests", type=Path, metavar="FILE", help=text)
    group.add_argument("--num-requests", "--num-prompts", type=int, default=1000, metavar="N", help="how many")
    text = "tokens without a prefix (default: the load's)"
    group.add_argument("--prompt-len", type=int, nargs=2, metavar=("MIN", "MAX"), help=text)
    text = "new tokens (default: the load's)"
    group.add_argument("--output-len", type=int, nargs=2, metavar=("MIN", "MAX"), help=text)
    group.add_argument("--prefix-groups", type=int, metavar="N", help="common beginnings (default: the load's)")
    group.add_argument("--prefix-len", type=int, metavar="N", help="tokens of each beginning (default: the load's)")
    group.add_argument("--urgent", type=float, default=0.0, metavar="SHARE", help="of requests with priority -1")
    text = "requests a second (default: all at once, or as --max-concurrency lets them)"
    group.add_argument("--request-rate", type=float, nargs="+", metavar="X", help=text)
    text = "1: Poisson; less: in clumps; more: more even"
    group.add_argument("--burstiness", type=float, default=1.0, metavar="X", help=text)
    group.add_argument("--max-concurrency", type=int, metavar="N", help="requests under way (default: any number)")

    group = command.add_argument_group("engine")
    text = "a step's budget (default: the engine's)"
    group.add_argument("--max-num-batched-tokens", type=int, nargs="+", metavar="N", help=text)
    group.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="most in a step")
    group.add_argument("--max-model-len", type=int, metavar="N", help="of a sequence (default: the model's)")
    group.add_argument("--block-size", type=int, nargs="+", default=[16], metavar="N", help="tokens in a block")
    text = "of the cache (default: what fits beside the weights in 90%% of the memory)"
    group.add_argument("--num-kv-blocks", type=int, nargs="+", metavar="N", help=text)
    group.add_argument("--policy", nargs="+", default=["fcfs"], choices=["fcfs", "priority"], help="who is first")
    group.add_argument("--no-prefix-caching", action="store_true", help="find nothing of earlier prompts")
    group.add_argument("--no-chunked-prefill", action="store_true", help="a prompt in one step")

    group = command.add_argument_group("replicas")
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="engines behind a router")
    choices = ["round-robin", "least-loaded", "prefix-affinity"]
    group.add_argument("--router", nargs="+", default=["round-robin"], choices=choices, help="who gets it")

    text = "count requests that are as fast, in ms: ttft:X, tpot:X or e2el:X; may be given again (default: none)"
    command.add_argument("--goodput", action="append", default=[], metavar="NAME:MS", help=text)
    command.add_argument("--trace", type=Path, metavar="FILE", help="write every step, for folovllm trace view")
    add_rounds(command, default=1)
    add_seed(command)
    add_output(command)


def run(args: argparse.Namespace) -> Report:
    if args.trace is not None:
        check_target("trace", args.trace)
    if args.rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {args.rounds}")
    if args.num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {args.num_requests}")
    from folovllm.bench.report import command_line
    from folovllm.simulator import report

    if args.num_kv_blocks is None and args.device == MEASURED:
        args.num_kv_blocks = [MEASURED_BLOCKS]
    return report.run(_machine(args), _load(args), args, command=command_line(args))


def _machine(args: argparse.Namespace) -> Machine:
    from folovllm.bench.shapes import ModelShape
    from folovllm.simulator.cost_model import Roofline
    from folovllm.simulator.devices import find_device
    from folovllm.simulator.report import Machine

    if args.device == MEASURED:
        cost, model, longest = _measure(args)
        return Machine(cost, model, "this machine", "cpu", args.dtype or "float32", longest)
    asked = {name: getattr(args, f"{name}_us") for name in ("step_overhead", "seq_overhead")}
    overheads = {name: value * 1e-6 for name, value in asked.items() if value is not None}
    device, shape = find_device(args.device, **overheads), ModelShape.of(args.shape_of or "llama-3.1-8b")
    dtype, count = args.dtype or "bfloat16", args.tensor_parallel_size
    cost = Roofline(device, shape, itemsize=4 if dtype == "float32" else 2, devices=count)
    name = f"{count} x {device.name}" if count > 1 else device.name
    return Machine(cost, shape.name, name, device.kind, dtype, shape.max_model_len)


def _load(args: argparse.Namespace) -> Load:
    """The preset, with what was given in its place."""
    from dataclasses import replace

    from folovllm.simulator.load import LOADS
    from folovllm.utils.checks import wrong

    if args.load not in LOADS:
        raise wrong("load", f"be one of {', '.join(LOADS)}", args.load)
    given = {
        "prompt": None if args.prompt_len is None else tuple(args.prompt_len),
        "output": None if args.output_len is None else tuple(args.output_len),
        "groups": args.prefix_groups,
        "prefix": args.prefix_len,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    return replace(LOADS[args.load], urgent=args.urgent, **changed)  # type: ignore[arg-type]


def model_here(shape_of: str | None) -> Any:
    """The model that runs here: a shape of folovllm.bench.shapes, or a folder."""
    from folovllm.bench.shapes import SHAPES
    from folovllm.bench.workload import bench_model

    name = shape_of or "qwen3-mini"
    return bench_model(None, name) if name in SHAPES else bench_model(name, "")


def _measure(args: argparse.Namespace) -> tuple[Any, str, int]:
    """The costs of steps on this machine, the model's name, and its longest sequence."""
    from folovllm.bench.workload import progress_bar
    from folovllm.simulator.real import RealRun, calibrate, fit, make_engine

    with model_here(args.shape_of) as model, progress_bar(2 + args.rounds) as tick:
        tick("loading")
        engine = make_engine(
            model,
            args.dtype or "float32",
            max_num_seqs=min(args.max_num_seqs, 32),
            num_kv_blocks=MEASURED_BLOCKS,
            max_model_len=min(args.max_model_len or 2048, 2048),
        )
        run = RealRun(engine, args.seed)
        tick("warming up")
        calibrate(run, args.seed, (1, 2))
        run.steps.clear()
        for number in range(args.rounds):
            tick(f"measuring, round {number + 1}/{args.rounds}")
            calibrate(run, args.seed + number)
        return fit(run.steps), model.label, engine.max_model_len
