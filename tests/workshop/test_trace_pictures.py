"""The pictures of traces show what the stored traces say, and these are what the milestones' engines do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from folovllm.tracing.lanes import lanes_of
from folovllm.tracing.summary import latencies, summarize, when_drawn
from workshop.trace_outside import RUNS, run
from workshop.trace_pictures import TRACES, stored, trace_all


@pytest.mark.parametrize("name", [name for name, (tree, _, _) in RUNS.items() if tree == "m6"])
def test_the_newest_engine_does_what_is_stored(name: str, tmp_path: Path) -> None:
    """Else: python -m workshop.trace_pictures trace"""
    run(name, tmp_path / "run.gz")
    assert _without_maker(tmp_path / "run.gz") == _without_maker(TRACES / f"{name}.gz")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_each_milestones_tree_does_what_is_stored(tmp_path: Path) -> None:
    trace_all(tmp_path)
    for name in RUNS:
        assert _without_maker(tmp_path / f"{name}.gz") == _without_maker(TRACES / f"{name}.gz"), name


def _without_maker(path: Path) -> list[dict[str, object]]:
    header, *records = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    return [{**header, "made_by": None}, *records]


def test_what_the_notes_tell_of_the_runs_is_so() -> None:
    m2 = {lane.id: [part.kind for part in lane.segments] for lane in lanes_of(stored("m2"))}
    assert [name for name, kinds in m2.items() if "waiting" in kinds] == ["D-0", "E-0"]
    m3 = stored("m3").steps
    assert [(step.step, len(step.copies)) for step in m3 if step.copies] == [(2, 1)]
    assert [(step.step, how) for step in m3 for _, how in step.preempted] == [(8, "recompute"), (12, "recompute")]
    whole, chunks = stored("m5-whole"), stored("m5-chunks")
    assert [max(latencies(trace)[0].gaps) for trace in (whole, chunks)] == [5950, 1800]
    assert [latencies(trace)[3].ttft for trace in (whole, chunks)] == [5950, 14000]
    off, on = stored("m6-off"), stored("m6-on")
    assert [summarize(trace)["prefill_tokens"] for trace in (off, on)] == [86, 38]
    assert [when_drawn(trace.steps[-1]) for trace in (off, on)] == [21300, 17900]
    again, swap = stored("m6-recompute"), stored("m6-swap")
    assert [summarize(trace)["prefill_tokens"] for trace in (again, swap)] == [61, 42]
    assert sum(len(step.swapped_out) for step in swap.steps) == 5
