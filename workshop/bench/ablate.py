"""Each thing that makes the engine fast, left out alone: what is it worth on this machine, and how sure is that?

    round 1   whole  without        round 2   whole  without        ...       one ratio a round, then the next feature
              └── without / whole ──┘

Two engines at a time, in turn, so that a slow minute slows both. Paging stays: without it there is no engine here. What
this device or model does not have is a row that says why. A part of each prompt is the same for all requests, or there
would be nothing for prefix caching to find.

vLLM: none; its switches are --enforce-eager, --no-async-scheduling, --no-enable-prefix-caching and others
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from folovllm.bench.contestant import FoloVLLM, Run
from folovllm.bench.options import add_model, add_output, add_rounds, command_line
from folovllm.bench.report import Report, Row, format_number
from folovllm.bench.spread import in_turn
from folovllm.bench.workload import (
    BenchModel,
    bench_model,
    dtype_of,
    progress_bar,
    random_prompts,
    require_at_least,
    vocab_size,
)
from folovllm.models.one_call import OneCallOps
from folovllm.utils.cpu_kernels import unavailable_reason
from folovllm.utils.devices import default_device
from workshop.bench.ablations import leave_out_draw, left_out

COLUMNS = ["feature", "seconds", "seconds_without", "ratio", "low", "high", "sure", "longest_step_ratio", "verdict"]
WARM_UP = 2  # requests
STYLES = {"worth it": "green", "costs": "red", "noise": "dim", "too few rounds": "yellow"}


@dataclass(frozen=True)
class Where:
    """What decides whether a feature is there to be left out."""

    device: torch.device
    engine: FoloVLLM


@dataclass(frozen=True)
class Feature:
    """`options` of an engine without it; `inside` is around building and running that engine."""

    what: str
    missing: Callable[[Where], str | None]
    """Why it is not there on this device; None where it is."""
    options: dict[str, Any] = field(default_factory=dict)
    inside: Callable[[torch.device], AbstractContextManager[Any]] = lambda device: nullcontext()
    after: Callable[[FoloVLLM], None] = lambda engine: None
    """Done to the engine that has been built."""


def _needs_cuda(why: str) -> Callable[[Where], str | None]:
    return lambda where: None if where.device.type == "cuda" else why


def _always(where: Where) -> str | None:
    return None


def _kernels(where: Where) -> str | None:
    return unavailable_reason() if where.device.type == "cpu" else "they are for CPUs"


def _fusing(where: Where) -> str | None:
    return unavailable_reason() if where.device.type == "cpu" else None


def _one_call(where: Where) -> str | None:
    if where.device.type != "cpu":
        return "a GPU has CUDA graphs"
    ops = where.engine.engine.runner.model.model.ops
    return None if isinstance(ops, OneCallOps) else "no compiled kernels run all of this model's layers here"


def _sampling(where: Where) -> str | None:
    return None if where.engine.engine.runner.sampling.uses_kernel else "no kernel of ours draws the tokens here"


def _threads(where: Where) -> str | None:
    if where.device.type != "cpu":
        return "the model is not on the CPU"
    return None if torch.get_num_threads() > 1 else "there is one thread anyway"


@contextmanager
def _without_kernels(device: torch.device) -> Iterator[None]:
    before = os.environ.get("FOLOVLLM_CPU_KERNELS")
    os.environ["FOLOVLLM_CPU_KERNELS"] = "no"
    try:
        yield
    finally:
        if before is None:
            del os.environ["FOLOVLLM_CPU_KERNELS"]
        else:
            os.environ["FOLOVLLM_CPU_KERNELS"] = before


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


FEATURES: dict[str, Feature] = {
    "graphs": Feature("CUDA graphs", _needs_cuda("a CPU has no CUDA graphs"), {"enforce_eager": True}),
    "ahead": Feature(
        "running ahead", _needs_cuda("off on a CPU, which would wait for itself"), {"async_scheduling": False}
    ),
    "chunked-prefill": Feature("chunked prefill", _always, {"enable_chunked_prefill": False}),
    "prefix-caching": Feature("prefix caching", _always, {"enable_prefix_caching": False}),
    "sampling": Feature("fast sampling", _sampling, after=lambda contestant: leave_out_draw(contestant.engine)),
    "one-call": Feature("all layers in one call", _one_call, {"enforce_eager": True}),
    "fusing": Feature("fused layers", _fusing, left_out(["norm", "rotary", "silu"], torch.device("cpu"))),
    "kernels": Feature("C++ kernels", _kernels, inside=_without_kernels),
    "threads": Feature("more than one thread", _threads, inside=_one_thread),
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Leave out one of the things that make the engine fast, each in turn: what is it worth here?"
    add_model(command)
    text = "only these (a wrong name is answered with all)"
    command.add_argument("--features", nargs="+", default=[], metavar="NAME", help=text)
    text = "requests in each round (default: 8)"
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", default=8, help=text)
    command.add_argument("--input-len", type=int, metavar="N", default=128, help="prompt tokens (default: 128)")
    command.add_argument("--output-len", type=int, metavar="N", default=32, help="new tokens (default: 32)")
    text = "tokens with which all prompts begin alike (default: half of them)"
    command.add_argument("--shared-len", type=int, metavar="N", help=text)
    add_rounds(command, default=6)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    names = ("device", "features", "num_requests", "input_len", "output_len", "shared_len", "rounds")
    options = {name: getattr(args, name) for name in names}
    with bench_model(args.model, args.shape) as model:
        return run(model, command=command_line(args), dtype=dtype_of(model, args.dtype, args.device), **options)


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    device: str | None = None,
    features: Sequence[str] = (),
    num_requests: int = 8,
    input_len: int = 128,
    output_len: int = 32,
    shared_len: int | None = None,
    rounds: int = 6,
) -> Report:
    """Every feature, or those that `features` names, each against the whole engine.

    Args:
        shared_len: tokens with which all prompts of a round begin alike; None: half of them.

    Raises:
        ValueError: a feature that there is not, or a number out of its range.
    """
    require_at_least(1, num_requests=num_requests, input_len=input_len, rounds=rounds)
    require_at_least(2, output_len=output_len)
    shared = input_len // 2 if shared_len is None else shared_len
    if not 0 <= shared < input_len:
        raise ValueError(f"shared_len must be in [0, {input_len - 1}], less than input_len, got {shared}")
    for name in features:
        if name not in FEATURES:
            raise ValueError(f"features must be of {', '.join(FEATURES)}, got {name!r}")
    names = [name for name in FEATURES if name in features or not features]
    where_to = torch.device(device or default_device())
    vocab = vocab_size(model)

    def prompts(number: int) -> list[list[int]]:
        """Other ids in each round: what a cache finds, it found in the same round."""
        (common,) = random_prompts(1, shared, vocab, 2 * number)
        own = random_prompts(num_requests if number else WARM_UP, input_len - shared, vocab, 2 * number + 1)
        return [common + rest for rest in own]

    def build(feature: Feature | None) -> FoloVLLM:
        with feature.inside(where_to) if feature else nullcontext():
            lacking = feature.options if feature else {}
            return FoloVLLM(model, dtype, device, input_len + output_len, **lacking)

    rows: list[Row] = []
    samples: list[dict[str, list[float]]] = []
    whole = build(None)
    where = Where(where_to, whole)
    with progress_bar(len(names) * (rounds + 1)) as tick:
        for name in names:
            feature = FEATURES[name]
            if (why := feature.missing(where)) is not None:
                rows.append({**dict.fromkeys(COLUMNS), "feature": feature.what, "verdict": f"not here: {why}"})
                samples.append({})
                continue
            without = build(feature)
            feature.after(without)
            with_it, without_it = _rounds(whole, without, feature, where_to, prompts, output_len, rounds, tick)
            del without
            gc.collect()
            rows.append(_row(feature.what, with_it, without_it))
            samples.append(
                {
                    "seconds": [run.seconds for run in with_it],
                    "seconds_without": [run.seconds for run in without_it],
                }
            )
    notes = [
        f"{num_requests} requests at once, {input_len} tokens in, the first {shared} of them the same for all, "
        f"{output_len} out, {dtype}; {rounds} rounds of each pair in turn, after a warm-up.",
        "ratio: seconds without the feature over seconds with it, the middle one of the rounds; low to high holds the "
        "true one, as sure as the column says. worth it: above 1. costs: below 1. noise: 1 is inside.",
        "longest step: the same ratio of each round's longest step, which is what others wait for.",
        "Each is left out alone. Together they are not the product: fused layers are C++ kernels where those can run.",
    ]
    title = f"One feature left out at a time, {model.label}"
    return Ablation("ablate", title, command, COLUMNS, rows, notes, samples=samples)


def _rounds(
    whole: FoloVLLM,
    without: FoloVLLM,
    feature: Feature,
    device: torch.device,
    prompts: Callable[[int], list[list[int]]],
    output_len: int,
    rounds: int,
    tick: Callable[[str], None],
) -> tuple[list[Run], list[Run]]:
    """Round 0 warms up. Which of the two comes first changes from round to round."""
    runs: tuple[list[Run], list[Run]] = ([], [])
    for number in range(rounds + 1):
        tick(f"without {feature.what}: " + (f"round {number}/{rounds}" if number else "warm-up"))
        for which in (0, 1) if number % 2 else (1, 0):
            gc.collect()
            with ExitStack() as stack:
                if which:
                    stack.enter_context(feature.inside(device))
                drawn = prompts(number)
                result = (whole, without)[which].run(drawn, [output_len] * len(drawn))
            if number:
                runs[which].append(result)
    return runs


def _row(what: str, whole: list[Run], without: list[Run]) -> Row:
    found = in_turn([run.seconds for run in whole], [run.seconds for run in without])
    longest = in_turn(*([max(step.seconds for step in run) for run in runs] for runs in (whole, without)))
    words = {"above": "worth it", "below": "costs"}
    return {
        "feature": what,
        "seconds": statistics.median(run.seconds for run in whole),
        "seconds_without": statistics.median(run.seconds for run in without),
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "sure": found.level,
        "longest_step_ratio": longest.ratio,
        "verdict": words.get(found.verdict, found.verdict),
    }


class Ablation(Report):
    """A report whose table has colours, and whose rows without figures say why."""

    def render(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for name in ("without", "whole s", "without s", "ratio", "interval", "sure", "longest step", ""):
            table.add_column(name, justify="left" if name in ("without", "") else "right")
        for row in self.rows:
            style = STYLES.get(row["verdict"], "dim")
            cells = ["–"] * 6
            if row["ratio"] is not None:
                cells = [format_number(row["seconds"]), format_number(row["seconds_without"])]
                cells += [f"{row['ratio']:.3f}", f"{row['low']:.3f} – {row['high']:.3f}", f"{row['sure']:.0%}"]
                cells += [f"{row['longest_step_ratio']:.2f}"]
            table.add_row(row["feature"], *cells, Text(row["verdict"], style=style))
        return table

    def _is_shared(self, key: str) -> bool:
        return False  # all of it is in the table
