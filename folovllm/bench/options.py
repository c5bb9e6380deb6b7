"""What benchmarks share: options, the checks before minutes of measuring, and showing the result.

vLLM: entrypoints/cli/benchmark/base.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folovllm.bench.shapes import DEFAULT_SHAPE, SHAPES
from folovllm.config import ModelConfig
from folovllm.entrypoints.cli.parser import add_fields
from folovllm.utils.named_files import check_target

if TYPE_CHECKING:
    from folovllm.bench.report import Report
    from folovllm.bench.workload import BenchModel


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number."""

    def integer(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return integer


def add_number(
    command: argparse._ActionsContainer, *flags: str, default: Any = None, help: str, least: int = 1, **more: Any
) -> None:
    command.add_argument(*flags, type=at_least(least), metavar="N", default=default, help=help, **more)


def add_batch_sizes(command: argparse.ArgumentParser, *default: int, help: str = "in a step") -> None:
    add_number(command, "--batch-sizes", default=list(default), help=help, nargs="+")


def add_source(parser: argparse._ActionsContainer) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--model", help="a local folder, a hub id, or 'embedded' (default: --shape)")
    text = "random weights of this shape, no download"
    group.add_argument("--shape", choices=list(SHAPES), default=DEFAULT_SHAPE, help=text)


def add_model(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    text = "dummy: random weights instead of the checkpoint's, for a --model whose config.json is there (default: auto)"
    parser.add_argument("--load-format", choices=["auto", "dummy"], help=text)
    add_fields(parser, ModelConfig, "dtype", "device")
    parser.set_defaults(dtype="auto", device=None)


def add_lengths(command: argparse.ArgumentParser, requests: int | None, prompt: int, output: int) -> None:
    """How many requests there are in a round, where that is asked, and how long."""
    if requests is not None:
        add_number(command, "--num-requests", "--num-prompts", default=requests, help="requests in each round")
    add_number(command, "--input-len", default=prompt, help="prompt tokens of a request")
    add_number(command, "--output-len", default=output, help="new tokens of a request", least=2)


def add_rounds(parser: argparse.ArgumentParser, default: int = 3) -> None:
    add_number(parser, "--rounds", default=default, help="measured rounds; medians are shown")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Every benchmark has these."""
    text = "CPU threads (default: torch's own choice, 1 for the embedded model)"
    add_number(parser, "--threads", help=text)
    text = "write the result here; - prints it, and no table"
    parser.add_argument("--json", "--output-json", metavar="PATH", help=text)


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="the same number repeats the same requests")


def add_common(parser: argparse.ArgumentParser, rounds: int = 3) -> None:
    add_rounds(parser, rounds)
    add_seed(parser)
    add_output(parser)


def prepare(args: argparse.Namespace) -> None:
    """Refuse wrong options before the minutes of measuring, not after them."""
    if args.json not in (None, "-"):
        check_target("json", Path(args.json))
    model = getattr(args, "model", None)
    if model is not None:
        from folovllm.model_loader.model_files import resolve_model_path

        resolve_model_path(model, weights=getattr(args, "load_format", None) != "dummy")
    settle_threads(args.threads, model)
    from folovllm.bench.neighbours import Neighbours

    args.neighbours = Neighbours()


def settle_threads(threads: int | None, model: str | None) -> None:
    """Everything that a benchmark starts computes with as many, other libraries too, and its table says how many."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # a number that is chosen holds, also in other processes

    import torch

    from folovllm.engine.one_thread import threads_for_steps

    with threads_for_steps(model)():
        as_many = torch.get_num_threads()
    torch.set_num_threads(threads or as_many)


@contextmanager
def source(args: argparse.Namespace) -> Iterator[BenchModel]:
    """The model that add_source's or add_model's options name; `args.dtype` becomes the one that it computes in.

    Its engines get the observers of --trace and the like.
    """
    from folovllm.bench.workload import bench_model, dtype_of

    with bench_model(args.model, args.shape, getattr(args, "load_format", None)) as model:
        if "dtype" in args:
            args.dtype = dtype_of(model, args.dtype, args.device)
        yield replace(model, observers=getattr(args, "observers", ()))


def show(args: argparse.Namespace, report: Report) -> int:
    """The report's name is the file's: documentation names it that way. The table comes first: what was measured is
    seen, also where the disk is full."""
    report.other_load = args.neighbours and args.neighbours.look()
    report.seed = getattr(args, "seed", None)
    if args.json not in (None, "-"):
        report.name = Path(args.json).stem
    if args.json == "-":
        print(report.to_json())
        return 0
    from folovllm.entrypoints.cli.console import PlainConsole

    report.show(PlainConsole())
    if args.json:
        report.save(Path(args.json))
        print(f"written: {args.json}", file=sys.stderr)
    return 0
