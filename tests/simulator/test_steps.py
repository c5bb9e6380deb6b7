"""The simulator schedules exactly what the engine schedules: step for step, sequence for sequence, block for block."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from folovllm.bench.runs import make_engine
from folovllm.bench.workload import bench_model
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams
from folovllm.simulator.load import Job
from folovllm.simulator.replica import Replica, Setup
from tests.simulator.support import SECOND_A_STEP

Step = list[tuple[str, int, int, tuple[int, ...]]]
"""(request, tokens computed, tokens scheduled, block table) of each row."""


def rows(output: Any) -> Step:
    pairs = zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
    return [(seq.request_id, seq.num_computed_tokens, count, tuple(seq.block_ids)) for seq, count in pairs]


def jobs(seed: int) -> list[Job]:
    """`time` is the number of the step before which it comes."""
    rng = random.Random(seed)
    found = []
    for _ in range(14):
        group = f"g{rng.randrange(2)}" if rng.random() < 0.6 else None
        prefix = 21 if group else 0
        time = float(rng.choice([0, 0, 1, 5, 12, 13, 30]))
        found.append(Job(time, prefix + rng.randint(1, 60), rng.randint(1, 24), group, prefix))
    return sorted(found, key=lambda job: job.time)


def prompt(number: int, job: Job) -> list[int]:
    """Each group's tokens in front, then the request's own."""
    own = random.Random(number).choices(range(100, 500), k=job.prompt_tokens - job.prefix_tokens)
    return [ord(job.group[1]) if job.group else 0] * job.prefix_tokens + own


def real_steps(engine: LLMEngine, jobs: list[Job]) -> list[Step]:
    waiting, steps = list(enumerate(jobs)), list[Step]()
    schedule = engine.scheduler.schedule

    def noting() -> Any:
        output = schedule()
        steps.append(rows(output))
        return output

    engine.scheduler.schedule = noting  # type: ignore[method-assign]
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0][1].time <= len(steps):
            number, job = waiting.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True)
            engine.add_request(str(number), {"prompt_token_ids": prompt(number, job)}, params)
        if engine.has_unfinished_requests():
            engine.step()
        else:
            steps.append([])
    return steps


def simulated_steps(engine: LLMEngine, jobs: list[Job]) -> tuple[list[Step], Replica]:
    kv, config = engine.scheduler.kv, engine.config
    cached = config.cache_config.enable_prefix_caching
    replica = Replica(Setup(config.scheduler_config, kv.num_blocks, kv.block_size, cached), SECOND_A_STEP)
    waiting, steps = list(enumerate(jobs)), list[Step]()
    schedule = replica.scheduler.schedule

    def noting() -> Any:
        output = schedule()
        steps.append(rows(output))
        return output

    replica.scheduler.schedule = noting  # type: ignore[method-assign]
    while waiting or replica.live:
        while waiting and waiting[0][1].time <= len(steps):
            number, job = waiting.pop(0)
            replica.add(number, replace(job, time=float(len(steps))))
        if replica.live:
            replica.advance(len(steps) + 1.0)
        else:
            steps.append([])
    return steps, replica


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with bench_model(None, "qwen3-tiny") as made:
        yield made


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        (200, {}),
        (26, {}),
        (26, {"enable_prefix_caching": False}),
        (40, {"block_size": 4, "max_num_seqs": 3}),
        (200, {"enable_chunked_prefill": False, "max_num_batched_tokens": 128}),
        (200, {"long_prefill_token_threshold": 8, "max_num_partial_prefills": 2}),
    ],
)
def test_the_simulator_schedules_the_engines_steps(model: Any, seed: int, blocks: int, options: dict[str, Any]):
    settings = {"max_num_batched_tokens": 32, "max_num_seqs": 6, "block_size": 8, "max_model_len": 128, **options}
    engine = make_engine(model, "float32", "cpu", swap_space=0.0, num_kv_blocks=blocks, **settings)
    load = jobs(seed)
    steps, replica = simulated_steps(engine, load)
    assert steps == real_steps(engine, load)
    assert replica.scheduler.preempter.num_recomputed == engine.scheduler.preempter.num_recomputed
    assert len(steps) > 30
    if blocks == 26 and seed == 0:  # what is compared has preemption and hits in it
        assert replica.scheduler.preempter.num_recomputed
        assert bool(replica.scheduler.kv.num_hits) == ("enable_prefix_caching" not in options)
