"""Random loads through the scheduler, traced: at every step a trace has the scheduler's own books."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from folovllm.tracing.lanes import lanes_of
from folovllm.tracing.perfetto import events
from folovllm.tracing.reader import blocks_of, read_trace
from tests.m6.support import caching_engine
from tests.tracing.support import Books, Simulated, check_step
from tests.tracing.test_records import SAMPLED, run_engine


def play(path: Path, seed: int) -> Books:
    """Arrivals with common prefixes and forks, aborts, resets, and too few blocks; in one load of four, layers with a
    window. Returns the books of each step."""
    draw = random.Random(seed)
    sizes, windows = ([20, 40, 80], (None, 20)) if seed % 4 == 3 else ([12, 20, 40], (None,))
    budget = draw.choice([16, 64])
    load = Simulated(path, num_blocks=draw.choice(sizes), max_num_seqs=6, budget=budget, windows=windows)
    load.scheduler.preempter.mode = draw.choice(["auto", "swap", "recompute"])
    books = Books(load.scheduler)
    for number in range(40):
        if draw.random() < 0.4:
            prompt = [1] * draw.choice([0, 16, 40]) + [number + 2] * draw.randrange(1, 50)
            load.add(f"r{number}", prompt, draw.randrange(1, 30), n=draw.choice([1, 1, 3]))
        if draw.random() < 0.1 and load.requests:
            load.scheduler.abort(load.requests[draw.choice(list(load.requests))])
        if draw.random() < 0.05:
            load.scheduler.kv.reset_prefix_cache()  # type: ignore[attr-defined]
        load.step()
    load.run()
    return books


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_trace_has_it(tmp_path: Path, seed: int) -> None:
    books = play(tmp_path / "sim.gz", seed)
    trace = read_trace(tmp_path / "sim.gz")
    for (record, tables, findable), truth in zip(blocks_of(trace), books.steps, strict=True):
        check_step(record, tables, findable, truth, trace.header.num_blocks)
    lanes = lanes_of(trace)
    for place, truth in enumerate(books.steps):
        swapped = [[each.kind for each in lane.segments if each.first <= place <= each.last] for lane in lanes]
        assert {lane.id for lane, kind in zip(lanes, swapped, strict=True) if kind == ["swapped"]} == truth["swapped"]
    for lane in lanes:  # each has one segment at a time, and an end
        assert lane.reason is not None
        assert all(before.last < after.first for before, after in pairwise(lane.segments))


def test_steps_that_run_ahead_do_not_overlap_within_a_track(text_model_folder, tmp_path: Path) -> None:
    engine = caching_engine(text_model_folder, async_scheduling=True)
    trace, _, _ = run_engine(engine, tmp_path / "run.gz", SAMPLED)
    assert any(after.t < before.t + sum(before.times) for before, after in pairwise(trace.steps))  # it did run ahead
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events(trace):
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len([track for track in tracks if track[0] == 1]) == 4
    for spans in tracks.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
