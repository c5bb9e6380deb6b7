"""`folovllm bench simulate`

vLLM: none
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from folovllm.bench.options import add_number, add_output, add_seed
from folovllm.utils.checks import wrong
from folovllm.utils.named_files import check_target

if TYPE_CHECKING:
    from folovllm.bench.report import Report
    from folovllm.simulator.load import Load

DESCRIPTION = (
    "The real scheduler and cache with a cost model where the model was: devices and models that are not here. "
    "Settings that take several values are simulated in each combination."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = DESCRIPTION
    group = command.add_argument_group("device and model")
    group.add_argument("--device", default="h100", help="h200, h100, a100, rtx-4090 or laptop (default: h100)")
    text = "a named shape such as llama-3.1-8b, a config.json, or a folder with one (default: llama-3.1-8b)"
    group.add_argument("--model", dest="shape_of", metavar="MODEL", default="llama-3.1-8b", help=text)
    choices = ["bfloat16", "float16", "float32"]
    group.add_argument("--dtype", default="bfloat16", choices=choices, help="of weights and cache")
    add_number(group, "--tensor-parallel-size", default=1, help="devices that share each layer")
    group.add_argument("--step-overhead-us", type=float, metavar="X", help="beside matmuls (default: the device's)")

    group = command.add_argument_group("load")
    choices = ["chat", "documents", "agents", "batch"]
    group.add_argument("--load", default="chat", choices=choices, help="lengths and common beginnings")
    add_number(group, "--num-requests", "--num-prompts", default=1000, help="how many")
    text = "tokens without a prefix (default: the load's)"
    group.add_argument("--prompt-len", type=int, nargs=2, metavar=("MIN", "MAX"), help=text)
    text = "new tokens (default: the load's)"
    group.add_argument("--output-len", type=int, nargs=2, metavar=("MIN", "MAX"), help=text)
    group.add_argument("--prefix-groups", type=int, metavar="N", help="common beginnings (default: the load's)")
    group.add_argument("--prefix-len", type=int, metavar="N", help="tokens of each beginning (default: the load's)")
    group.add_argument("--urgent", type=float, default=0.0, metavar="SHARE", help="of requests with priority -1")
    text = "requests a second (default: all at once)"
    group.add_argument("--request-rate", type=float, nargs="+", metavar="X", help=text)
    text = "1: Poisson; less: in clumps; more: more even"
    group.add_argument("--burstiness", type=float, default=1.0, metavar="X", help=text)

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
    add_number(group, "--replicas", default=1, help="engines behind a router")
    choices = ["round-robin", "least-loaded", "prefix-affinity"]
    group.add_argument("--router", nargs="+", default=["round-robin"], choices=choices, help="who gets it")

    text = "count requests that are as fast, in ms: ttft:X, tpot:X or e2el:X; may be given again (default: none)"
    command.add_argument("--goodput", action="append", default=[], metavar="NAME:MS", help=text)
    command.add_argument("--trace", type=Path, metavar="FILE", help="write every step, for folovllm trace view")
    add_seed(command)
    add_output(command)


def run(args: argparse.Namespace) -> Report:
    if args.trace is not None:
        check_target("trace", args.trace)
    from folovllm.bench.shapes import ModelShape
    from folovllm.simulator import report
    from folovllm.simulator.cost_model import Roofline
    from folovllm.simulator.devices import find_device

    device = find_device(args.device)
    if args.step_overhead_us is not None:
        if not 0 <= args.step_overhead_us < float("inf"):
            raise wrong("step_overhead_us", "be non-negative microseconds", args.step_overhead_us)
        device = replace(device, step_overhead=args.step_overhead_us * 1e-6)
    itemsize = 4 if args.dtype == "float32" else 2
    cost = Roofline(device, ModelShape.of(args.shape_of), itemsize=itemsize, devices=args.tensor_parallel_size)
    return report.run(cost, _load(args), args)


def _load(args: argparse.Namespace) -> Load:
    """The preset, with what was given in its place."""
    from folovllm.simulator.load import LOADS

    given = {
        "prompt": args.prompt_len and tuple(args.prompt_len),
        "output": args.output_len and tuple(args.output_len),
        "groups": args.prefix_groups,
        "prefix": args.prefix_len,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    return replace(LOADS[args.load], urgent=args.urgent, **changed)
