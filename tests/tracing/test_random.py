"""Random loads through the scheduler, traced: at every step a replayed trace has the scheduler's own books."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from folovllm.request import SequenceStatus
from folovllm.tracing.lanes import lanes_of
from folovllm.tracing.perfetto import events
from folovllm.tracing.reader import read_trace
from folovllm.tracing.replay import RUNNING, SWAPPED, Replay
from tests.m6.support import caching_engine
from tests.tracing.support import Simulated
from tests.tracing.test_records import SAMPLED, run_engine

Books = tuple[dict[str, list[int]], set[int], int, set[str]]


def books_of(load: Simulated) -> Books:
    """Block tables, findable blocks, free blocks, swapped sequences."""
    scheduler = load.scheduler
    running = [seq for request in scheduler.running for seq in request.get_seqs(SequenceStatus.RUNNING)]
    swapped = {seq.seq_id for request in scheduler.swapped for seq in request.get_seqs(SequenceStatus.SWAPPED)}
    pool = scheduler.kv.pool
    findable = {block for block in range(1, pool.num_blocks + 1) if pool.is_cached(block)}  # type: ignore[attr-defined]
    return {seq.seq_id: list(seq.block_ids) for seq in running if seq.block_ids}, findable, pool.num_free, swapped


def play(path: Path, seed: int) -> list[Books]:
    """Arrivals with common prefixes and forks, aborts, resets, and too few blocks. Returns the books of each step."""
    draw = random.Random(seed)
    load = Simulated(path, num_blocks=draw.choice([12, 20, 40]), max_num_seqs=6, budget=draw.choice([16, 64]))
    load.scheduler.preempter.mode = draw.choice(["auto", "swap", "recompute"])
    books: list[Books] = []
    schedule = load.scheduler.schedule

    def look() -> object:
        output = schedule()
        books.append(books_of(load))
        return output

    load.scheduler.schedule = look  # type: ignore[assignment, method-assign]
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
    books = play(tmp_path / "sim.jsonl", seed)
    trace = read_trace(tmp_path / "sim.jsonl")
    replay = Replay()
    for (record, rows), (tables, findable, free, swapped) in zip(replay.run(trace.steps), books, strict=True):
        assert {seq.id: seq.table for seq in replay.seqs.values() if seq.table} == tables
        assert replay.findable == findable
        assert trace.header.num_blocks - len(replay.owners()) == free == record.free
        assert {seq.id for seq in replay.seqs.values() if seq.status == SWAPPED} == swapped
        assert {row.seq.id for row in rows} <= {seq.id for seq in replay.seqs.values() if seq.status == RUNNING}
    for lane in lanes_of(trace):  # each has one segment at a time, and an end
        assert lane.reason is not None
        assert all(before.last < after.first for before, after in pairwise(lane.segments))


def test_steps_that_run_ahead_do_not_overlap_within_a_track(text_model_folder, tmp_path: Path) -> None:
    engine = caching_engine(text_model_folder, async_scheduling=True)
    trace, _, _ = run_engine(engine, tmp_path / "run.jsonl", SAMPLED)
    assert any(after.t < before.t + sum(before.times) for before, after in pairwise(trace.steps))  # it did run ahead
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events(trace):
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len([track for track in tracks if track[0] == 1]) == 4
    for spans in tracks.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
