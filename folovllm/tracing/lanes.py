"""The life of each sequence as a row of segments: what it did, from which step to which.

    kinds     waiting  prefill  decode  idle  preempted  swapped
              idle: it runs, and this step computes nothing of it

A segment of `decode` covers many steps, so a trace of millions of rows becomes some hundred segments a sequence.

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass, field

from folovllm.tracing.reader import Trace
from folovllm.tracing.replay import ENDED, PREEMPTED, RUNNING, SWAPPED, WAITING, Replay, Row
from folovllm.tracing.schema import StepRecord

KINDS = ("waiting", "prefill", "decode", "idle", "preempted", "swapped")
_RESTING = {WAITING: "waiting", PREEMPTED: "preempted", SWAPPED: "swapped", RUNNING: "idle"}


@dataclass(slots=True)
class Segment:
    """Steps first .. last, both included."""

    kind: str
    first: int
    last: int
    start: int
    """Tokens that were computed before it."""
    num_tokens: int = 0


@dataclass(slots=True)
class Lane:
    number: int
    request: int
    id: str
    arrival: int | None
    """Microseconds; None where the request came before the trace."""
    segments: list[Segment] = field(default_factory=list)
    reason: str | None = None
    ended_at: int | None = None
    """The step after which it had ended."""
    found: int = 0
    """Tokens that it did not have to compute, over its whole life."""
    _bounds: list[tuple[int, int]] = field(default_factory=list)

    def when(self, segment: Segment) -> tuple[int, int]:
        """Microseconds from the begin of its first step to the end of its last. Waiting begins with the arrival."""
        begin = self._bounds[segment.first][0]
        if segment is self.segments[0] and segment.kind == "waiting" and self.arrival is not None:
            begin = min(begin, self.arrival)
        return begin, self._bounds[segment.last][1]


def bounds(steps: list[StepRecord]) -> list[tuple[int, int]]:
    """When each step has the floor: from its begin to the begin of the next, the last one to its end."""
    ends = [step.t for step in steps[1:]] + [step.t + sum(step.times) for step in steps[-1:]]
    return [(step.t, max(step.t, end)) for step, end in zip(steps, ends, strict=True)]


def lanes_of(trace: Trace) -> list[Lane]:
    """In the order of their numbers, which is that in which they came. Steps of segments are places in trace.steps."""
    replay, lanes = Replay(), dict[int, Lane]()
    places = bounds(trace.steps)
    alive: dict[int, Lane] = {}
    for place, (record, rows) in enumerate(replay.run(trace.steps)):
        for number, request, seq_id in record.seqs:
            arrival = replay.requests.get(request)
            lane = Lane(number, request, seq_id, arrival.t if arrival else None, _bounds=places)
            alive[number] = lanes[number] = lane
        for number, num_tokens in record.found:
            lanes[number].found += num_tokens
        for number, reason in record.left:
            if number in alive:
                gone = alive.pop(number)
                gone.reason, gone.ended_at = reason, place - 1
        busy = {row.seq.number: row for row in rows}
        for number, lane in alive.items():
            _extend(lane, place, busy.get(number), replay)
        for number, reason in record.ended:
            if number in alive:
                ended = alive.pop(number)
                ended.reason, ended.ended_at = reason, place
    for number, reason in trace.end.ended if trace.end else ():
        if number in alive:
            alive[number].reason, alive[number].ended_at = reason, len(places) - 1
    return [lanes[number] for number in sorted(lanes)]


def _extend(lane: Lane, place: int, row: Row | None, replay: Replay) -> None:
    """One step more."""
    seq = replay.seqs[lane.number]
    if seq.status == ENDED:
        return
    if row is None:
        kind, start, num_tokens = _RESTING[seq.status], seq.computed, 0
    else:
        kind = "prefill" if row.kind == "fork" else row.kind
        start, num_tokens = row.start, row.num_tokens
    last = lane.segments[-1] if lane.segments else None
    # Chunks of a prompt stay apart, so that each is seen, and so does a step that brought several tokens.
    is_apart = (
        kind == "prefill" or num_tokens > 1 or (last is not None and last.num_tokens > last.last - last.first + 1)
    )
    if last is not None and last.kind == kind and last.last == place - 1 and not is_apart:
        last.last = place
        last.num_tokens += num_tokens
    else:
        lane.segments.append(Segment(kind, place, place, start, num_tokens))
