"""What a trace comes to in a few numbers, and the latencies of its requests.

A token is there when its step has ended: at the end of the wait and the update (StepRecord.times).

vLLM: none
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from folovllm.tracing.reader import Trace
from folovllm.tracing.replay import Replay
from folovllm.tracing.schema import StepRecord


@dataclass(slots=True)
class Latency:
    """Of one request; times in microseconds."""

    arrival: int
    drawn: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By sequence: when each of its tokens was there."""

    @property
    def ttft(self) -> int | None:
        """From the arrival to the first token of any of its sequences."""
        firsts = [times[0] for times in self.drawn.values() if times]
        return min(firsts) - self.arrival if firsts else None

    @property
    def gaps(self) -> list[int]:
        """Between a token and the next one of the same sequence."""
        return [b - a for times in self.drawn.values() for a, b in pairwise(times)]


def when_drawn(record: StepRecord) -> int:
    """When the tokens of a step were there, in microseconds since the trace began."""
    return record.t + sum(record.times[:4])


def num_drawn(record: StepRecord) -> int:
    return sum(token is not None for token in record.tokens) + len(record.first) + len(record.later)


def latencies(trace: Trace) -> dict[int, Latency]:
    """By request, of those whose arrival is in the trace."""
    replay, found = Replay(), dict[int, Latency]()
    for record, rows in replay.run(trace.steps):
        for arrival in record.arrived:
            found[arrival.request] = Latency(arrival.t)
        at = when_drawn(record)
        for row in rows:
            # A beam's token is chosen later, but its time is this step's.
            is_beam = row.token is None and row.kind == "decode" and not record.failed
            if (row.token is not None or is_beam) and row.seq.request in found:
                found[row.seq.request].drawn[row.seq.number] += [at] * (1 + len(row.later))
    return found


def percentile(values: list[int], percent: int) -> int:
    """The nearest rank: one of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def _draft_tokens(steps: list[StepRecord]) -> dict[str, Any]:
    count = sum(num for step in steps for _, num in step.drafted)
    return {"draft_tokens": count, "draft_tokens_accepted": sum(len(step.later) for step in steps)} if count else {}


def summarize(trace: Trace) -> dict[str, Any]:
    """Counts over the whole trace, and latencies in milliseconds."""
    steps, times = trace.steps, latencies(trace)
    ttfts = [latency.ttft for latency in times.values() if latency.ttft is not None]
    gaps = [gap for latency in times.values() for gap in latency.gaps]
    used = [trace.header.num_blocks - step.free for step in steps]
    return {
        "model": trace.header.model,
        "device": f"{trace.header.device}, {trace.header.dtype}",
        "clock": trace.header.clock,
        "steps": len(steps),
        "seconds": round((when_drawn(steps[-1]) - steps[0].t) / 1e6, 3) if steps else 0.0,
        "requests": sum(len(step.arrived) for step in steps),
        "sequences": sum(len(step.seqs) for step in steps),
        "prefill_tokens": sum(num for step in steps for _, _, num in step.prefill),
        "found_tokens": sum(num for step in steps for _, num in step.found),
        "output_tokens": sum(num_drawn(step) for step in steps),
        **_draft_tokens(steps),
        "preempted": sum(len(step.preempted) for step in steps),
        "copies": sum(len(step.copies) for step in steps),
        "evicted": sum(len(step.evicted) for step in steps),
        "blocks": trace.header.num_blocks,
        "most_blocks_used": max(used, default=0),
        "ttft_p50_ms": round(statistics.median(ttfts) / 1e3, 3) if ttfts else None,
        "ttft_p99_ms": round(percentile(ttfts, 99) / 1e3, 3) if ttfts else None,
        "itl_p50_ms": round(statistics.median(gaps) / 1e3, 3) if gaps else None,
        "itl_p99_ms": round(percentile(gaps, 99) / 1e3, 3) if gaps else None,
        "closed": trace.end is not None,
        "torn": trace.is_torn,
    }
