"""The scheduler alone: what it costs to decide, and whether a longer line makes it cost more.

No model: each step's tokens are made up. A request that ends is replaced by another, so the line keeps its length:

    1,000 wait     ▐ step ▐ step ▐ …          the lines take turns, some steps each,
    100,000 wait   ▐ step ▐ step ▐ …          and the cost of a step must be the same

Timed: schedule(), update_from_output() and finish(). add_request() is timed by itself.

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from folovllm.bench.options import add_output, add_rounds, add_seed
from folovllm.bench.report import Report, Row, counted, medians
from folovllm.bench.workload import progress_bar, require_at_least
from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams

COLUMNS = ["waiting", "steps", "tokens", "add_us", "step_us", "token_us", "growth"]
MAX_NUM_SEQS, MAX_BATCHED_TOKENS, MAX_MODEL_LEN = 256, 2048, 512
PROMPT_TOKENS, OUTPUT_TOKENS = (8, 128), (8, 128)
WARM_UP_STEPS = 200  # by then requests end and join at the rate at which they go on to
TOKEN_ID = 7
BLOCK_SIZE = 16


class Round(NamedTuple):
    """Seconds per added request, step and token; and how many tokens."""

    add: float
    step: float
    token: float
    tokens: int


class Line:
    """A scheduler before which `waiting` requests wait, whatever it does."""

    def __init__(self, waiting: int, seed: int = 0) -> None:
        self.waiting = waiting
        self.rounds: list[Round] = []
        config = SchedulerConfig(
            max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_BATCHED_TOKENS, max_model_len=MAX_MODEL_LEN
        )
        kv = KVCacheManager(MAX_NUM_SEQS * MAX_MODEL_LEN // BLOCK_SIZE, BLOCK_SIZE)  # enough for all that may run
        self.scheduler = Scheduler(config, kv, eos_token_ids=frozenset())
        self.requests: dict[str, Request] = {}
        self._rng = random.Random(seed)
        self._made = 0
        for _ in range(waiting):
            self._add()

    def _add(self) -> float:
        """Seconds of add_request()."""
        request = Request(
            str(self._made),
            None,
            [TOKEN_ID] * self._rng.randint(*PROMPT_TOKENS),
            SamplingParams(max_tokens=self._rng.randint(*OUTPUT_TOKENS)),
        )
        self._made += 1
        self.requests[request.request_id] = request
        start = time.perf_counter()
        self.scheduler.add_request(request)
        return time.perf_counter() - start

    def run(self, steps: int) -> Round:
        add = step = 0.0
        tokens = ended = 0
        for _ in range(steps):
            seconds, num_tokens, gone = self._step()
            step, tokens = step + seconds, tokens + num_tokens
            for request_id in gone:
                del self.requests[request_id]
            while len(self.scheduler.waiting) < self.waiting:
                add, ended = add + self._add(), ended + 1
        return Round(add / max(1, ended), step / steps, step / tokens, tokens)

    def _step(self) -> tuple[float, int, list[str]]:
        """Seconds, tokens scheduled, and the requests that ended."""
        scheduler, requests = self.scheduler, self.requests
        gone: list[str] = []
        start = time.perf_counter()
        output = scheduler.schedule()
        for seq, status in scheduler.update_from_output(output, [TOKEN_ID] * len(output.scheduled_seqs)):
            if status is not None:
                scheduler.finish(requests[seq.request_id], seq, status)
                gone.append(seq.request_id)
        return time.perf_counter() - start, output.total_num_scheduled_tokens, gone


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Requests through the scheduler with no model: what deciding costs, however long the line."
    text = "requests that wait; the first is what growth is measured from"
    command.add_argument("--waiting", type=int, nargs="+", default=[1_000, 10_000, 100_000], metavar="N", help=text)
    command.add_argument("--steps", type=int, metavar="N", default=500, help="measured steps of a round")
    add_rounds(command, default=5)
    add_seed(command)
    add_output(command)


def run(waiting: Sequence[int], *, command: str, steps: int = 500, rounds: int = 5, seed: int = 0) -> Report:
    require_at_least(1, steps=steps, rounds=rounds)
    for count in waiting:
        require_at_least(1, waiting=count)
    with progress_bar(len(waiting) * (rounds + 1)) as tick:
        lines = []
        for count in waiting:
            tick(f"adding {count:,} requests")
            lines.append(Line(count, seed))
            lines[-1].run(WARM_UP_STEPS)
        gc.collect()
        gc.freeze()  # or every line would pay for the objects of all of them, whenever the collector passes
        try:
            for number in range(rounds):
                for line in lines:
                    tick(f"round {number + 1}/{rounds}: {line.waiting:,} waiting")
                    line.rounds.append(line.run(steps))
        finally:
            gc.unfreeze()
    samples = [
        {f"{name}_us": [getattr(each, name) * 1e6 for each in line.rounds] for name in ("add", "step", "token")}
        for line in lines
    ]
    rows: list[Row] = [
        {"waiting": line.waiting, "steps": steps * rounds, "tokens": sum(each.tokens for each in line.rounds)}
        | {name: statistics.median(values) for name, values in measured.items()}
        for line, measured in zip(lines, samples, strict=True)
    ]
    for row in rows:
        row["growth"] = row["token_us"] / rows[0]["token_us"]
    notes = [
        f"{medians(rounds, 'round')} of {counted(steps, 'step')} after {WARM_UP_STEPS} to warm up, one process, "
        "in turn; a request that ends is replaced, so the line keeps its length.",
        f"max_num_seqs {MAX_NUM_SEQS}, max_num_batched_tokens {MAX_BATCHED_TOKENS}; prompts of {_range(PROMPT_TOKENS)} "
        f"tokens, outputs of {_range(OUTPUT_TOKENS)}, uniform, seed 0.",
        "step: schedule(), update_from_output() and finish(); token: the same per scheduled token, of prompts and "
        "outputs.",
        "growth: token over the first row's. The requests made at the start are kept out of garbage collection.",
    ]
    return Report("scheduler", "The scheduler alone, no model", command, COLUMNS, rows, notes, samples=samples)


def _range(ends: tuple[int, int]) -> str:
    return f"{ends[0]} to {ends[1]}"
