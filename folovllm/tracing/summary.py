"""What a trace comes to in a few numbers, and the latencies of its requests.

A token is there when its step has ended: at the end of the wait and the update (Step.times).

vLLM: none
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from folovllm.tracing.lanes import lanes_of
from folovllm.tracing.reader import Row, Trace, num_drawn, rows_of
from folovllm.tracing.records import Step


@dataclass(slots=True)
class Latency:
    """Of one request; times in microseconds."""

    arrival: int
    drawn: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
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


def when_drawn(record: Step) -> int:
    """When the tokens of a step were there, as Step.t."""
    return record.t + sum(record.times[:4])


def prefilled(record: Step) -> list[Row]:
    return [row for row in rows_of(record) if row.kind == "prefill"]


def latencies(trace: Trace) -> list[Latency]:
    """By the number of the request, of those whose arrival is in the trace."""
    found: list[Latency] = []
    for _, record, numbers in trace.walk():
        found += [Latency(arrival.t) for arrival in record.arrived]
        at = when_drawn(record)
        for row in rows_of(record):
            # A beam's token is chosen later, but its time is this step's.
            is_beam = not row.token_ids and row.kind == "decode" and not record.failed
            if (row.token_ids or is_beam) and row.request_id in numbers:
                found[numbers[row.request_id]].drawn[row.seq_id] += [at] * max(1, len(row.token_ids))
    return found


def percentile(values: list[int], percent: int) -> int:
    """The nearest rank: one of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def _draft_tokens(steps: list[Step]) -> dict[str, Any]:
    count = sum(sum(step.drafted.values()) for step in steps)
    accepted = sum(len(tokens) for step in steps for tokens in step.later.values())
    return {"draft_tokens": count, "draft_tokens_accepted": accepted} if count else {}


def summarize(trace: Trace) -> dict[str, Any]:
    """Counts over the whole trace, and latencies in milliseconds."""
    steps, times = trace.steps, latencies(trace)
    ttfts = [latency.ttft for latency in times if latency.ttft is not None]
    gaps = [gap for latency in times for gap in latency.gaps]
    used = [trace.header.num_blocks - step.free for step in steps]
    return {
        "model": trace.header.model,
        "device": f"{trace.header.device}, {trace.header.dtype}",
        "clock": trace.header.clock,
        "steps": len(steps),
        "seconds": round((when_drawn(steps[-1]) - steps[0].t) / 1e6, 3) if steps else 0.0,
        "requests": sum(len(step.arrived) for step in steps),
        "sequences": len(lanes_of(trace)),
        "prefill_tokens": sum(row.num_tokens for step in steps for row in prefilled(step)),
        "found_tokens": sum(num for step in steps for _, num in step.admitted),
        "output_tokens": sum(num_drawn(step) for step in steps),
        **_draft_tokens(steps),
        "preempted": sum(len(step.preempted) for step in steps),
        "copies": sum(len(step.copies) for step in steps),
        "evicted": sum(len(step.removed) for step in steps),
        "blocks": trace.header.num_blocks,
        "most_blocks_used": max(used, default=0),
        "ttft_p50_ms": round(statistics.median(ttfts) / 1e3, 3) if ttfts else None,
        "ttft_p99_ms": round(percentile(ttfts, 99) / 1e3, 3) if ttfts else None,
        "itl_p50_ms": round(statistics.median(gaps) / 1e3, 3) if gaps else None,
        "itl_p99_ms": round(percentile(gaps, 99) / 1e3, 3) if gaps else None,
        "closed": trace.end is not None,
        "torn": trace.is_torn,
    }
