"""What benchmarks share: options, the checks before minutes of measuring, and showing the result.

vLLM: entrypoints/cli/benchmark/base.py
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from folovllm.bench.shapes import DEFAULT_SHAPE, SHAPES
from folovllm.entrypoints.cli.parser import HELP, add_dtype
from folovllm.utils.named_files import check_target

if TYPE_CHECKING:
    from folovllm.bench.report import Report
    from folovllm.bench.workload import BenchModel


def add_source(parser: argparse._ActionsContainer) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--model", help="a local folder, a hub id, or 'embedded' (default: --shape)")
    group.add_argument(
        "--shape",
        choices=list(SHAPES),
        default=DEFAULT_SHAPE,
        help="random weights of this shape, no download",
    )


def add_model(parser: argparse._ActionsContainer) -> None:
    add_source(parser)
    text = "dummy: random weights instead of the checkpoint's, for a --model whose config.json is there (default: auto)"
    parser.add_argument("--load-format", choices=["auto", "dummy"], help=text)
    add_dtype(parser)
    parser.add_argument("--device", help=HELP["device"])


def add_rounds(parser: argparse.ArgumentParser, default: int = 3) -> None:
    parser.add_argument("--rounds", type=int, metavar="N", default=default, help="measured rounds; medians are shown")


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="the same number repeats the same requests")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Every benchmark has these."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: torch's own choice, 1 for the embedded model)"
    )
    parser.add_argument("--json", metavar="PATH", help="write the result here; - prints it, and no table")


def command_line(args: argparse.Namespace) -> str:
    return shlex.join([*args.program.split(), *args.argv])


def prepare(args: argparse.Namespace) -> None:
    """Refuse wrong options before the minutes of measuring, not after them."""
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"threads must be at least 1, got {args.threads}")
    if args.json not in (None, "-"):
        check_target("json", Path(args.json))
    if getattr(args, "model", None) is not None:
        from folovllm.model_files import resolve_model_path

        resolve_model_path(args.model, weights=getattr(args, "load_format", None) != "dummy")
    settle_threads(args.threads, getattr(args, "model", None))
    from folovllm.bench.neighbours import Neighbours

    args.neighbours = Neighbours()


def settle_threads(threads: int | None, model: str | None) -> None:
    """Everything that a benchmark starts computes with as many, other libraries too, and its table says how many."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # a number that is chosen holds, also in other processes

    import torch

    from folovllm.engine.threads import threads_for

    torch.set_num_threads(threads or threads_for(model))


@contextmanager
def source(args: argparse.Namespace) -> Iterator[BenchModel]:
    """The model that add_model's options name; its engines are looked at as --trace and the like say."""
    from folovllm.bench.workload import bench_model

    with bench_model(args.model, args.shape, args.load_format) as model:
        yield replace(model, observers=getattr(args, "observers", ()))


def call(run: Callable[..., Report], args: argparse.Namespace) -> Report:
    """What `run` gives: its parameters are the options of the same names, `model` and `dtype` what they come to."""
    names = signature(run).parameters
    given = {name: getattr(args, name) for name in names if name in args} | {"command": command_line(args)}
    if "model" not in names:
        return run(**given)
    from folovllm.bench.workload import dtype_of

    with source(args) as model:
        return run(**given | {"model": model, "dtype": dtype_of(model, args.dtype, args.device)})


def show(args: argparse.Namespace, report: Report) -> int:
    """The report's name is the file's: documentation names it that way. The table comes first: what was measured is
    seen, also where the disk is full."""
    report.other_load = None if args.neighbours is None else args.neighbours.look()
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
