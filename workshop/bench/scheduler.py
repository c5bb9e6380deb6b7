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
from typing import NamedTuple

from folovllm.bench.options import add_common, add_number
from folovllm.bench.report import Report, medians
from folovllm.bench.workload import progress_bar
from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from workshop.bench.rounds import take_turns
from workshop.bench.timer import counted

COLUMNS = ["waiting", "steps", "tokens", "add_us", "step_us", "token_us", "growth"]
MAX_NUM_SEQS, MAX_BATCHED_TOKENS, MAX_MODEL_LEN, BLOCK_SIZE = 256, 2048, 512, 16
LENGTHS = (8, 128)  # of prompts and of outputs
WARM_UP_STEPS = 200  # by then requests end and join at the rate at which they go on to
TOKEN_ID = 7


class Round(NamedTuple):
    """Microseconds per added request, step and token; and how many tokens."""

    add_us: float
    step_us: float
    token_us: float
    tokens: int


class Line:
    """A scheduler before which `waiting` requests wait, whatever it does."""

    def __init__(self, waiting: int, seed: int = 0) -> None:
        self.waiting = waiting
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
        prompt, output = [TOKEN_ID] * self._rng.randint(*LENGTHS), self._rng.randint(*LENGTHS)
        request = Request(str(self._made), None, prompt, SamplingParams(max_tokens=output))
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
        return Round(1e6 * add / max(1, ended), 1e6 * step / steps, 1e6 * step / tokens, tokens)

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
    add_number(command, "--waiting", default=[1_000, 10_000, 100_000], help=text, nargs="+")
    add_number(command, "--steps", default=500, help="measured steps of a round")
    add_common(command, rounds=5)


def run(args: argparse.Namespace) -> Report:
    waiting, steps, rounds = args.waiting, args.steps, args.rounds
    with progress_bar(len(waiting) * (rounds + 2)) as tick:
        plays = []
        for count in waiting:
            tick(f"adding {count:,} requests")
            line = Line(count, args.seed)
            name = f"{count:,} waiting"
            plays.append((name, lambda number, line=line: line.run(steps if number else WARM_UP_STEPS)))
        gc.collect()
        gc.freeze()  # or every line would pay for the objects of all of them, whenever the collector passes
        try:
            found = take_turns(plays, rounds, tick)
        finally:
            gc.unfreeze()
    first = statistics.median(each.token_us for each in found[0])
    lines = []
    for count, each_round in zip(waiting, found, strict=True):
        samples = {name: [getattr(each, name) for each in each_round] for name in ("add_us", "step_us", "token_us")}
        facts = {"waiting": count, "steps": steps * rounds, "tokens": sum(each.tokens for each in each_round)}
        lines.append((facts | {"growth": statistics.median(samples["token_us"]) / first}, samples))
    notes = [
        f"{medians(rounds, 'round')} of {counted(steps, 'step')} after {WARM_UP_STEPS} to warm up, one process, "
        "in turn; a request that ends is replaced, so the line keeps its length.",
        f"max_num_seqs {MAX_NUM_SEQS}, max_num_batched_tokens {MAX_BATCHED_TOKENS}; prompts and outputs of "
        f"{LENGTHS[0]} to {LENGTHS[1]} tokens, uniform, seed {args.seed}.",
        "step: schedule(), update_from_output() and finish(); token: the same per scheduled token, of prompts and "
        "outputs.",
        "growth: token over the first row's. The requests made at the start are kept out of garbage collection.",
    ]
    return Report.of(args, "The scheduler alone, no model", COLUMNS, lines, notes)
