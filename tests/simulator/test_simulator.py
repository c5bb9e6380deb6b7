"""The clock, the blocks and the order of things, against numbers that can be counted on fingers."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.shapes import ModelShape
from folovllm.serving.routing import ROUTERS, RoundRobin
from folovllm.simulator.cost_model import Linear
from folovllm.simulator.devices import find_device
from folovllm.simulator.load import LOADS, Job, Load
from folovllm.simulator.meter import Gaps, Meter
from folovllm.simulator.prompts import first_hashes
from folovllm.simulator.replica import Replica, Setup
from folovllm.simulator.simulator import Simulator
from tests.simulator.support import setup, simulate

LINEAR = Linear(0.004, 3e-5, 2e-5, 1e-7, 1e-9)
H100, LLAMA = find_device("h100"), ModelShape.of("llama-3.1-8b")


def test_the_clock_of_one_request_is_the_sum_of_its_steps():
    """Arrives at 10; 4 tokens in: (1 + 4 * 0.1) = 1.4 s to the first token, then two decodes of 1.1 s each."""
    _, meter, seconds = simulate([Job(10.0, 4, 3)], cost=Linear(1.0, 0.1, 0.0, 0.0, 0.0))
    assert list(meter.ttft) == pytest.approx([1.4])
    assert list(meter.tpot) == pytest.approx([1.1])
    assert seconds == pytest.approx(13.6)


def test_who_comes_during_a_step_waits_for_the_next():
    """The first's prefill takes from 0 to 1; the second came at 0.25 and has its first token at 2."""
    _, meter, _ = simulate([Job(0.0, 4, 1), Job(0.25, 4, 1)])
    assert list(meter.ttft) == pytest.approx([1.0, 1.75])


def test_keys_read_and_pairs_are_those_of_the_contexts():
    """4 tokens in: 4 keys read, 1 + 2 + 3 + 4 = 10 pairs; the decode behind them: 5 and 5."""
    shapes = []

    class Notes(Linear):
        def seconds(self, *shape: int) -> float:
            shapes.append(shape)
            return 1.0

    simulate([Job(0.0, 4, 2)], cost=Notes(1.0, 0.0, 0.0, 0.0, 0.0))
    assert shapes == [(4, 1, 4, 10), (1, 1, 5, 5)]


def test_a_closed_loop_sends_the_next_when_one_has_ended():
    """One client: 2 steps each, one after the other, and each is served at once."""
    _, meter, seconds = simulate([Job(0.0, 4, 2)] * 3, max_concurrency=1)
    assert seconds == pytest.approx(6.0)
    assert list(meter.ttft) == pytest.approx([1.0, 1.0, 1.0])


def test_a_chats_next_turn_finds_its_prompt_and_answer():
    """16 in, 9 out: 24 tokens have been computed, the last one's keys have not; 6 blocks of 4."""
    simulator, _, _ = simulate([Job(0.0, 16, 9, chat="a"), Job(50.0, 40, 1, chat="a")])
    (replica,) = simulator.replicas.values()
    assert replica.scheduler.kv.num_hits == 24


def test_real_tokens_are_found_by_their_hashes():
    tokens = tuple(range(12))
    jobs = [Job(0.0, 12, 1, token_ids=tokens), Job(5.0, 12, 1, token_ids=(*tokens[:8], 99, 98, 97, 96))]
    simulator, _, _ = simulate(jobs)
    (replica,) = simulator.replicas.values()
    assert replica.scheduler.kv.num_hits == 8


def test_a_prompt_that_never_fits_is_refused_and_counted():
    _, meter, _ = simulate([Job(0.0, 4000, 1), Job(0.0, 4, 1)])
    assert (meter.refused, meter.finished) == (1, 1)


def test_replicas_share_the_load():
    simulator, _, seconds = simulate([Job(0.0, 4, 4)] * 4, replicas=2, router=RoundRobin(), made=setup(rows=1))
    assert simulator.sent == {"replica-0": 2, "replica-1": 2}
    assert seconds == pytest.approx(8.0)


def random_jobs(seed: int, count: int = 60) -> list[Job]:
    rng = random.Random(seed)
    load = Load((1, 60), (1, 60), groups=3, prefix=rng.choice([13, 40]), urgent=0.2)
    return list(load.jobs(count, Arrivals(rng.choice([4, 20, 200]), rng.choice([0.3, 1.0])), seed))


def outcome(simulator: Simulator, meter: Meter, seconds: float) -> list[object]:
    """All that may be seen of a simulation, the order of the free blocks included."""
    found: list[object] = [seconds, meter.itl.count, meter.itl._bins]
    found += [sorted(numbers) for numbers in (meter.ttft, meter.tpot, meter.e2el, meter.urgent_ttft)]
    for replica in simulator.replicas.values():
        pool = replica.scheduler.kv.pool
        found += [list(pool.get_all_free_blocks()), replica.counts.steps, replica.scheduler.preempter.num_recomputed]
        found += [pool.num_evicted, pool.num_cached]
    return found


def one_step_after_the_other(jobs: list[Job], made: Setup, kind: str, count: int) -> tuple[Simulator, Meter, float]:
    """The plainest way: whatever comes next comes next, a request or the end of one step of one replica."""
    meter = Meter()
    simulator = Simulator(made, LINEAR, meter, replicas=count, router=ROUTERS[kind]())
    replicas = list(simulator.replicas.values())
    for number, job in enumerate(jobs):
        while (first := min(replicas, key=Replica.next_end)).next_end() <= job.time:
            first.advance(first.next_end())
        loads = {name: len(replica.live) for name, replica in simulator.replicas.items()}
        name = simulator.router.choose(first_hashes(str(number), job, made.block_size), loads)
        simulator.sent[name] += 1
        simulator.replicas[name].add(number, job, job.time)
    while any(replica.live for replica in replicas):
        first = min(replicas, key=Replica.next_end)
        first.advance(first.next_end())
    return simulator, meter, max(replica.now for replica in replicas)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("seed", range(8))
def test_replicas_that_go_on_alone_come_to_what_all_come_to_step_by_step(seed: int, kind: str):
    made, jobs = setup(blocks=[60, 200][seed % 2], rows=[3, 8][seed % 2]), random_jobs(seed, 120)
    fast = simulate(jobs, made, LINEAR, replicas=4, router=ROUTERS[kind]())
    slow = one_step_after_the_other(jobs, made, kind, 4)
    assert fast[0].sent == slow[0].sent
    assert outcome(*fast) == outcome(*slow)


def test_a_gap_in_which_a_request_came_is_as_long_as_any():
    """One runs from 0 on, a second a step; the other comes at 3.75, and its prefill takes the step from 4 to 5."""
    _, meter, _ = simulate([Job(0.0, 4, 9), Job(3.75, 4, 2)])
    assert meter.itl.percentile(0) == pytest.approx(1.0, rel=0.005)
    assert meter.itl.percentile(100) == pytest.approx(1.0, rel=0.005)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("seed", range(3))
def test_in_the_end_every_block_is_free_and_every_request_answered(seed: int, kind: str):
    jobs = random_jobs(seed)
    simulator, meter, _ = simulate(jobs, setup(blocks=60), LINEAR, replicas=3, router=ROUTERS[kind]())
    assert meter.finished + meter.refused == len(jobs)
    assert meter.output_tokens == sum(job.output_tokens for job in jobs)
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


def test_jobs_are_taken_one_by_one():
    """A million of them need not exist at once."""
    taken = []

    def jobs() -> Iterable[Job]:
        for number in range(100):
            taken.append(number)
            yield Job(float(10 * number), 4, 2)

    simulator = Simulator(setup(), LINEAR, Meter())
    most_ahead = 0

    def on_progress(finished: int) -> None:
        nonlocal most_ahead
        most_ahead = max(most_ahead, len(taken) - finished)

    simulator.run(jobs(), on_progress)
    assert most_ahead <= 2


def test_a_gap_after_a_preemption_is_as_long_as_the_pause():
    meter = Meter()
    simulator = Simulator(setup(blocks=6, caching=False, rows=2), Linear(1.0, 0, 0, 0, 0), meter)
    simulator.run([Job(0.0, 8, 9), Job(0.0, 8, 9)])
    (replica,) = simulator.replicas.values()
    assert replica.scheduler.preempter.num_recomputed > 0
    assert meter.itl.count == 16
    assert meter.itl.percentile(100) > 1.5


def test_a_histograms_percentile_is_off_by_half_a_bin_at_most():
    gaps = Gaps()
    for milliseconds in range(1, 1001):
        gaps.add(milliseconds * 1e-3)
    assert gaps.percentile(50) == pytest.approx(0.5, rel=0.006)
    assert gaps.percentile(99) == pytest.approx(0.99, rel=0.006)
    assert Gaps().percentile(50) is None
