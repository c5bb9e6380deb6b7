"""The engine itself under the same jobs: to learn what its steps cost, and to see how far a simulation is from it.

    jobs ─▶ prompts with tokens ─▶ LLMEngine ─▶ times of each request
                                       └─ of each step: what it computed, and its seconds

The clock stops while the engine has nothing to do, and goes on at the next arrival. It is the wall's, or that of the
process's CPU time: on a machine that others use as well, a wall clock measures the others, too.

vLLM: none
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from folovllm.bench import contestant
from folovllm.bench.arrivals import Arrivals
from folovllm.bench.metrics import RequestTimes
from folovllm.bench.workload import BenchModel
from folovllm.core.observer import EngineObserver
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.engine.llm_engine import LLMEngine
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.simulator.cost_model import Linear, StepShape
from folovllm.simulator.load import Job, Load

GROUP_SIZES = (1, 2, 4, 8, 16, 32)
"""Of the calibration: requests that come together, and then decode together."""
SHORT, LONG = Load((4, 40), (12, 12)), Load((16, 640), (16, 16))
"""Short prompts: decodes of the whole group, and small chunks. Long ones: whole budgets, and long contexts."""
MOST_LONG = 8
"""Requests of a group with long prompts: more of them add nothing, and take as long as all the rest."""


@dataclass(frozen=True)
class MeasuredStep:
    shape: StepShape
    seconds: float


def make_engine(model: BenchModel, dtype: str, **options: Any) -> LLMEngine:
    """On a CPU, where the clock around a step is the step's. `options`: as of the bench's."""
    return contestant.make_engine(model, dtype, "cpu", swap_space=0.0, **options)


class RealRun(EngineObserver):
    """Plays jobs on an engine, which must be idle between two plays.

    Args:
        clock: gives seconds.

    Attributes:
        steps: all that were measured so far.
    """

    def __init__(self, engine: LLMEngine, seed: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine, self.clock, self.steps = engine, clock, list[MeasuredStep]()
        self._shapes: list[StepShape] = []  # of the steps that are scheduled and not yet measured
        engine.observers.append(self)
        self._rng = random.Random(f"tokens {seed}")
        self._groups: dict[str, list[int]] = {}
        self._number = 0

    def scheduled(self, output: SchedulerOutput) -> None:
        self._shapes.append(StepShape.of(output))

    def play(
        self, jobs: Iterable[Job], between: Callable[[], object] | None = None, every: float = 0.0
    ) -> list[RequestTimes]:
        """Each job at its time; without prefixes in the cache from before.

        Args:
            between: called after each `every` seconds of steps, while the clock is stopped.
        """
        engine, waiting = self.engine, deque((job, self._prompt(job)) for job in jobs)
        engine.reset_prefix_cache()
        found: dict[str, RequestTimes] = {}
        sent: dict[str, float] = {}
        began = paused = self.clock()
        while waiting or engine.has_unfinished_requests():
            now = self.clock() - began
            if waiting and not engine.has_unfinished_requests() and (idle := waiting[0][0].time - now) > 0:
                began, now = began - idle, now + idle
            while waiting and waiting[0][0].time <= now:
                job, prompt = waiting.popleft()
                name, self._number = str(self._number), self._number + 1
                found[name], sent[name] = RequestTimes(), job.time
                params = SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True)
                engine.add_request(name, {"prompt_token_ids": prompt}, params)
            outputs = self._step()
            at = self.clock() - began
            for output in outputs:
                times = found[output.request_id]
                times.num_tokens = len(output.outputs[0].token_ids)
                times.e2el = at - sent[output.request_id]
                times.arrivals.append(times.e2el)
            if between is not None and (stopped := self.clock()) - paused >= every:
                between()
                paused = self.clock()
                began += paused - stopped
        return list(found.values())

    def _step(self) -> list[RequestOutput]:
        self._shapes.clear()
        began = self.clock()
        outputs = self.engine.step()
        seconds = self.clock() - began
        if self._shapes and self._shapes[0].tokens:
            self.steps.append(MeasuredStep(self._shapes[0], seconds))
        return outputs

    def _prompt(self, job: Job) -> list[int]:
        vocab = self.engine.runner.vocab_size
        if job.group is not None and len(self._groups.setdefault(job.group, [])) < job.prefix_tokens:
            prefix = self._groups[job.group]
            prefix += [self._rng.randrange(vocab) for _ in range(job.prefix_tokens - len(prefix))]
        shared = self._groups[job.group][: job.prefix_tokens] if job.group is not None else []
        return shared + [self._rng.randrange(vocab) for _ in range(job.prompt_tokens - len(shared))]


def calibration(run: RealRun, seed: int, sizes: Sequence[int] = GROUP_SIZES) -> Iterator[None]:
    """Plays a group of requests each time that it is asked for the next, until all sizes were there. Their steps are of
    all kinds: prompts' chunks of many lengths behind contexts of many lengths, and decodes of several."""
    rows, longest = run.engine.scheduler.max_num_seqs, run.engine.max_model_len
    for number, size in enumerate(sizes):
        for load in (SHORT, LONG):
            if size <= (rows if load is SHORT else min(rows, MOST_LONG)):
                fitting = replace(load, prompt=(load.prompt[0], min(load.prompt[1], longest // 2)))
                run.play(fitting.jobs(size, Arrivals(), seed * len(sizes) + number))
                yield


def calibrate(run: RealRun, seed: int, sizes: Sequence[int] = GROUP_SIZES) -> list[MeasuredStep]:
    """The steps of a whole calibration."""
    before = len(run.steps)
    for _ in calibration(run, seed, sizes):
        pass
    return run.steps[before:]


def fit(steps: Sequence[MeasuredStep]) -> Linear:
    """The costs of these steps in the mean: a load is held up now and then, as they were."""
    shapes, seconds = [step.shape for step in steps], [step.seconds for step in steps]
    return Linear.fit(shapes, seconds).refit(shapes, seconds)
