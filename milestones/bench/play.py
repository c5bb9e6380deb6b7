"""Requests that arrive one after another, played to a milestone's engine: when did each of their tokens come?

    wave 0    a ├─┬─┬─┬─┬─┬─┬─┬─┬─┤         there at the start
    wave 1          b ├──────┬─┬─┬─┤        comes when each request so far has `after` tokens, or has ended
    seconds   0     ↑ arrival ↑ first token

Each engine is in another process (workers/waves_engine.py). All figures of the workloads come from these times.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milestones.bench.worker_process import RUN, WorkerError, WorkerProcess
from milestones.chain import Course
from milestones.spec import MilestoneError
from milestones.trees import write_tree

ENGINE = RUN.with_name("waves_engine.py")
LEAST_AGREEMENT = 0.9


@contextmanager
def start_workers(
    course: Course, engines: dict[str, tuple[str, dict[str, Any]]], threads: int | None, tick: Callable[[str], None]
) -> Iterator[list[WorkerProcess]]:
    """A process for each engine: a name -> whose tree, and what its LLM is made with. They end with the block."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="folovllm-bench-"))).resolve()
        workers = []
        for name, (milestone, options) in engines.items():
            tick(f"loading {name}")
            tree = scratch / name
            write_tree(course.tree(course.get(milestone).number), tree)
            env = {**os.environ, "PYTHONPATH": str(tree)} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
            try:
                worker = WorkerProcess(name, ENGINE, {"tree": str(tree), "options": options}, env=env, cwd=tree)
            except WorkerError as error:
                raise MilestoneError(str(error)) from error
            stack.callback(worker.close)
            workers.append(worker)
        yield workers


@dataclass(frozen=True)
class Wave:
    """Requests that arrive together."""

    prompts: list[list[int]]
    max_tokens: list[int]
    after: int = 0


@dataclass(frozen=True)
class Played:
    """What became of the requests, in the order of their arrival; times in seconds from the start."""

    seconds: float
    arrivals: list[float]
    times: list[list[float]]
    """When each token of each request came."""
    tokens: list[list[int]]
    cached: list[int | None]
    """Prompt tokens that each request did not have to compute; None where the milestone does not say."""
    peak: dict[str, int] = field(default_factory=dict)
    """The most sequences at once, and the KV cache's tokens when most were used; empty without statistics."""

    @property
    def ttft(self) -> list[float]:
        return [times[0] - arrival for times, arrival in zip(self.times, self.arrivals, strict=True)]


def play(worker: WorkerProcess, waves: Sequence[Wave], enough: int | None = None) -> Played:
    """`enough`: when each request has so many tokens, the rest is not waited for."""
    try:
        played = Played(**worker.ask({"waves": [vars(wave) for wave in waves], "enough": enough}))
    except WorkerError as error:
        raise MilestoneError(str(error)) from error
    wanted = [length for wave in waves for length in wave.max_tokens]
    least = wanted if enough is None else [enough] * len(wanted)
    if any(len(tokens) < few for tokens, few in zip(played.tokens, least, strict=True)):
        raise MilestoneError(f"{worker.name} gave shorter outputs than were asked for")
    return played


def agreement(mine: Played, reference: Played) -> float:
    """The share of tokens that are the same, in each request up to the first that is not: behind that one the
    continuations differ anyway."""
    same = total = 0
    for tokens, expected in zip(mine.tokens, reference.tokens, strict=True):
        pairs = list(zip(tokens, expected, strict=False))  # what came after `enough` was not waited for everywhere
        total += len(pairs)
        same += next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return same / total


def check_agreement(name: str, share: float, dtype: str, least: float = LEAST_AGREEMENT) -> None:
    """Other tokens are a mistake, where rounding does not turn one token into another: in float32, a near tie aside."""
    if dtype == "float32" and share < least:
        raise MilestoneError(
            f"{name} gives other tokens: only {share:.0%} are the first milestone's, and {least:.0%} must be"
        )
