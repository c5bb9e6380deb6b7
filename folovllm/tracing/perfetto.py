"""A trace for Perfetto and chrome://tracing: the Trace Event Format, one JSON object.

    process "engine"     step │ schedule launch wait update output         counters: tokens, blocks, requests
    process "requests"   one track a sequence: waiting, prefill, decode, preempted, swapped

Format: "Trace Event Format" (Google, 2016); ui.perfetto.dev reads it.

vLLM: none
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from folovllm.tracing.lanes import lanes_of
from folovllm.tracing.reader import Trace, num_drawn
from folovllm.tracing.records import PARTS, Step
from folovllm.tracing.summary import prefilled

ENGINE, SEQUENCES = 1, 2

Event = dict[str, Any]


def write_perfetto(trace: Trace, file: TextIO) -> int:
    """Returns how many events there are."""
    count = 0
    file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    for event in events(trace):
        file.write((",\n" if count else "") + json.dumps(event, separators=(",", ":")))
        count += 1
    file.write("\n]}\n")
    return count


def events(trace: Trace) -> Iterator[Event]:
    yield _name("process_name", ENGINE, 0, f"engine: {trace.header.model} on {trace.header.device}")
    for track in (1, 3):
        yield _name("thread_name", ENGINE, track, "steps" if track == 1 else "steps that ran ahead")
        yield _name("thread_name", ENGINE, track + 1, "parts of a step")
    yield _name("process_name", SEQUENCES, 0, "sequences")
    ends = {1: 0, 3: 0}
    for record in trace.steps:
        track = 1 if ends[1] <= record.t else 3  # where the engine runs ahead, steps overlap; spans of a track must not
        yield from _step(record, trace.header.num_blocks, track)
        ends[track] = record.t + sum(record.times)
    for lane in lanes_of(trace):
        yield _name("thread_name", SEQUENCES, lane.number + 1, f"{lane.number}: {lane.id}")
        for segment in lane.segments:
            begin, end = lane.when(segment)
            first, last = (trace.steps[place].step for place in (segment.first, segment.last))
            args = {"from step": first, "to step": last, "tokens": segment.num_tokens}
            yield _span(segment.kind, SEQUENCES, lane.number + 1, begin, end, args)


def _step(record: Step, num_blocks: int, track: int) -> Iterator[Event]:
    begin, end = record.t, record.t + sum(record.times)
    facts = {
        "prefill tokens": sum(row.num_tokens for row in prefilled(record)),
        "drawn": num_drawn(record),
    }
    yield _span(f"step {record.step}", ENGINE, track, begin, end, facts)
    at = record.t
    for part, took in zip(PARTS, record.times, strict=True):
        if took:
            yield _span(part, ENGINE, track + 1, at, at + took, {"step": record.step})
        at += took
    yield {"name": "blocks", "ph": "C", "pid": ENGINE, "ts": begin, "args": {"used": num_blocks - record.free}}
    yield {"name": "waiting", "ph": "C", "pid": ENGINE, "ts": begin, "args": {"requests": record.waiting}}


def _span(name: str, pid: int, tid: int, begin: int, end: int, args: dict[str, Any]) -> Event:
    return {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": begin, "dur": max(0, end - begin), "args": args}


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
