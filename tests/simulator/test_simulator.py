"""The clock, the blocks and the order of things, against numbers that can be counted on fingers."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.metrics import RequestTimes
from folovllm.serving.routing import ROUTERS, RoundRobin
from folovllm.simulator.load import LOADS, Job, Load
from folovllm.simulator.simulator import Simulator
from tests.simulator.support import Linear, setup, simulate

LINEAR = Linear(0.004, 3e-5, 2e-5, 1e-7)


def test_the_clock_of_one_request_is_the_sum_of_its_steps():
    """Arrives at 10; 4 tokens in: (1 + 4 * 0.1) = 1.4 s to the first token, then two decodes of 1.1 s each."""
    simulator, (times,) = simulate([Job(10.0, 4, 3)], cost=Linear(1.0, 0.1))
    assert (times.ttft, times.tpot, simulator.now) == pytest.approx((1.4, 1.1, 13.6))
    assert (times.itl, times.e2el) == (pytest.approx([1.1, 1.1]), pytest.approx(3.6))


def test_who_comes_during_a_step_waits_for_the_next():
    """The first's prefill takes from 0 to 1; the second came at 0.25 and has its first token at 2."""
    _, times = simulate([Job(0.0, 4, 1), Job(0.25, 4, 1)])
    assert [each.ttft for each in times] == [1.0, 1.75]


def test_keys_read_and_pairs_are_those_of_the_contexts():
    """4 tokens in: 4 keys read, 1 + 2 + 3 + 4 = 10 pairs; the decode behind them: 5 and 5."""
    shapes = []

    class Notes(Linear):
        def seconds(self, *shape: int) -> float:
            shapes.append(shape)
            return 1.0

    simulate([Job(0.0, 4, 2)], cost=Notes(1.0))
    assert shapes == [(4, 1, 4, 10), (1, 1, 5, 5)]


def test_a_group_finds_the_whole_blocks_of_its_prefix():
    """10 of 16 tokens are the group's: two blocks of 4, and the third is each one's own."""
    simulator, _ = simulate([Job(0.0, 16, 1, "a", 10), Job(5.0, 16, 1, "a", 10), Job(9.0, 16, 1, "b", 10)])
    (replica,) = simulator.replicas.values()
    assert replica.scheduler.kv.num_hits == 8


def test_a_prompt_that_never_fits_is_refused_and_counted():
    _, times = simulate([Job(0.0, 4000, 1), Job(0.0, 4, 1)])
    assert [each.problem for each in times] == ["4000 prompt tokens do not fit into 512", None]


def test_replicas_share_the_load():
    simulator, _ = simulate([Job(0.0, 4, 4)] * 4, replicas=2, router=RoundRobin(), made=setup(rows=1))
    assert [(replica.now, replica.steps) for replica in simulator.replicas.values()] == [(8.0, 8), (8.0, 8)]


def random_jobs(seed: int, count: int = 60) -> list[Job]:
    rng = random.Random(seed)
    load = Load((1, 60), (1, 60), groups=3, prefix=rng.choice([13, 40]), urgent=0.2)
    return list(load.jobs(count, Arrivals(rng.choice([4, 20, 200]), rng.choice([0.3, 1.0])), seed))


def outcome(simulator: Simulator, times: list[RequestTimes]) -> list[object]:
    """All that may be seen of a simulation, the order of the free blocks included."""
    found: list[object] = [simulator.now, times]
    for replica in simulator.replicas.values():
        pool = replica.scheduler.kv.pool
        found += [list(pool.get_all_free_blocks()), replica.steps, replica.scheduler.preempter.num_recomputed]
        found += [pool.num_evicted, pool.num_cached]
    return found


@pytest.mark.parametrize("kind", ROUTERS)
def test_when_a_replica_is_looked_at_changes_nothing(kind: str):
    """Between two arrivals each goes on alone, in one piece or in many."""
    jobs, made = random_jobs(3, 120), setup(blocks=60, rows=3)
    plain = simulate(jobs, made, LINEAR, replicas=4, router=ROUTERS[kind]())
    simulator = Simulator(made, LINEAR, replicas=4, router=ROUTERS[kind]())

    def looked_at() -> Iterable[Job]:
        now, rng = 0.0, random.Random(kind)
        for job in jobs:
            for moment in sorted(rng.uniform(now, job.time) for _ in range(9)):
                rng.choice(list(simulator.replicas.values())).advance(moment)
            now = job.time
            yield job

    assert outcome(simulator, simulator.run(looked_at())) == outcome(*plain)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("seed", range(3))
def test_in_the_end_every_block_is_free_and_every_request_answered(seed: int, kind: str):
    jobs = random_jobs(seed)
    simulator, times = simulate(jobs, setup(blocks=60), LINEAR, replicas=3, router=ROUTERS[kind]())
    for job, each in zip(jobs, times, strict=True):
        assert each.problem is not None or len(each.arrivals) == each.num_tokens == job.output_tokens
    for replica in simulator.replicas.values():
        replica.scheduler.check_invariants()
        assert replica.scheduler.kv.pool.num_used == 0
        assert not replica.live
        assert not replica.scheduler.kv._chains


def test_the_same_seed_is_the_same_simulation():
    runs = [
        simulate(list(LOADS["chat"].jobs(40, Arrivals(50), seed)), cost=LINEAR, made=setup(block_size=16))
        for seed in (1, 1, 2)
    ]
    assert outcome(*runs[0]) == outcome(*runs[1]) != outcome(*runs[2])


def test_a_gap_after_a_preemption_is_as_long_as_the_pause():
    simulator, times = simulate([Job(0.0, 8, 9), Job(0.0, 8, 9)], setup(blocks=6, caching=False, rows=2))
    (replica,) = simulator.replicas.values()
    assert replica.scheduler.preempter.num_recomputed > 0
    assert sorted({gap for each in times for gap in each.itl})[-1] > 1.5
