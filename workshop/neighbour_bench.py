"""What does one busy process beside us cost? Prefill, decode and single products, quiet and in company in turn.

    python -m workshop.neighbour_bench --requests 1 8

The products are the floor: they are nothing but work for the threads of csrc/pool.h, region after region. A step of a
model can lose more, where it waits for one thread, and that is what the table shows.

The neighbour is a child of this process, stopped while nobody is to be there. A round in which *other* programs ran is
not counted: under their load neither half says anything. Linux only.

vLLM: none
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import folovllm  # noqa: F401  before torch: it sets how OpenMP's threads wait

# isort: split
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from folovllm.bench.neighbours import Neighbours
from folovllm.bench.workload import random_prompts, shape_config
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams
from workshop.product_bench import layer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPE, PROMPT, OUTPUT = "qwen3-0.6b", 128, 16
PRODUCT_ROWS = (1, 8, 128)
WEIGHTS = 12  # of 6,144 by 1,024: more than the caches hold
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


# A stopped process outlives a parent that is killed, unless it has asked Linux not to (PR_SET_PDEATHSIG is 1).
BUSY = """
import ctypes
getattr(ctypes.CDLL(None), "prctl", lambda *_: None)(1, 9)
print(flush=True)
while True: pass
"""


class Neighbour:
    """A process that wants one core, while it is let() run."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
        if self.process.stdout is not None:
            self.process.stdout.readline()  # it has asked to end with us
        self.process.send_signal(signal.SIGSTOP)

    @contextmanager
    def let(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGCONT)
        time.sleep(0.1)  # until the scheduler has found it a core
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass(frozen=True)
class Pair:
    """One round of one piece of work: seconds quiet and in company, and how many cores others used meanwhile."""

    quiet: float
    beside: float
    others: float


def summary(pairs: list[Pair], most_others: float) -> tuple[float, float, int] | None:
    """Median seconds when quiet, median of the ratios, and the rounds that count; None where none does."""
    kept = [pair for pair in pairs if pair.others <= most_others]
    if not kept:
        return None
    return statistics.median(p.quiet for p in kept), statistics.median(p.beside / p.quiet for p in kept), len(kept)


def products(rows: int, dtype: torch.dtype) -> Callable[[], dict[str, float]]:
    """Multiplies `rows` rows by weights that come from memory: seconds of one product."""
    layers = [layer_of(torch.randn(6144, 1024).mul_(0.02).to(dtype)) for _ in range(WEIGHTS)]
    x, repeats = torch.randn(rows, 1024).to(dtype), max(1, 256 // rows)

    def measure() -> dict[str, float]:
        began = time.perf_counter()
        for _ in range(repeats):
            for layer in layers:
                layer(x)
        return {f"product, {rows} {'row' if rows == 1 else 'rows'}": (time.perf_counter() - began) / repeats / WEIGHTS}

    return measure


def steps(engine: LLMEngine, requests: int) -> Callable[[], dict[str, float]]:
    """Answers `requests` prompts: seconds of the prefill, and of the mean decode step."""
    numbers = iter(range(1 << 30))

    def measure() -> dict[str, float]:
        number = next(numbers)
        params = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True, detokenize=False)
        for i, prompt in enumerate(random_prompts([PROMPT] * requests, shape_config(SHAPE).vocab_size, number)):
            engine.add_request(f"{requests}-{number}-{i}", prompt, params)
        times = []
        while engine.has_unfinished_requests():
            began = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - began)
        return {f"prefill, {requests} x {PROMPT}": times[0], f"decode, {requests}": statistics.mean(times[1:])}

    return measure


def make_engine(dtype: str, layers: int, most_requests: int) -> LLMEngine:
    config = shape_config(SHAPE)
    config.num_hidden_layers, config.layer_types = layers, config.layer_types[:layers]
    options: dict[str, Any] = {"max_model_len": PROMPT + OUTPUT + 1, "max_num_seqs": most_requests}
    # All prompts in one step: the first step is the prefill, the others are decodes.
    options |= {"max_num_batched_tokens": PROMPT * most_requests, "enable_prefix_caching": False}
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return LLMEngine(config_for_llm(folder, load_format="dummy", skip_tokenizer_init=True, dtype=dtype, **options))


def pair_of(work: Callable[[], dict[str, float]], neighbour: Neighbour) -> dict[str, Pair]:
    watch = Neighbours()
    quiet = work()
    with neighbour.let():
        beside = work()
    load = watch.look()
    others = load["cpu_seconds"] / load["wall_seconds"]
    return {name: Pair(quiet[name], beside[name], others) for name in quiet}


def run(args: argparse.Namespace) -> Table:
    works = [products(rows, DTYPES[args.dtype]) for rows in PRODUCT_ROWS]
    engine = make_engine(args.dtype, args.layers, max(args.requests))
    works += [steps(engine, requests) for requests in args.requests]
    for work in works:
        work()
    pairs: dict[str, list[Pair]] = {}
    neighbour = Neighbour()
    try:
        for _ in track(range(args.rounds), "rounds", console=Console(stderr=True), transient=True):
            for work in works:
                for name, pair in pair_of(work, neighbour).items():
                    pairs.setdefault(name, []).append(pair)
    finally:
        neighbour.end()
    table = Table("work", "quiet ms", "beside / quiet", "rounds", title=f"Beside one busy process, {args.dtype}")
    for name, found in pairs.items():
        result = summary(found, args.most_others)
        cells = ("-", "-", "0") if result is None else (f"{result[0] * 1e3:.2f}", f"{result[1]:.2f}", str(result[2]))
        table.add_row(name, *cells)
    table.caption = (
        f"Medians of rounds in which other programs used at most {args.most_others} cores, of {args.rounds}; "
        f"{torch.get_num_threads()} threads, {args.layers} layer{'s' * (args.layers > 1)} of the {SHAPE} shape."
    )
    return table


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workshop.neighbour_bench", description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8], help="prompts of a step")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--most-others", type=float, default=0.15, metavar="CORES", help="or the round is not counted")
    args = parser.parse_args(arguments)
    for name in ("layers", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if min(args.requests) < 1:
        parser.error(f"--requests must be at least 1, got {min(args.requests)}")
    return args


if __name__ == "__main__":
    Console().print(run(parse()))
