"""The life of each sequence as a row of segments: what it did, from which step to which.

    kinds     waiting  prefill  decode  idle  preempted  swapped
              idle: it runs, and this step computes nothing of it

A segment of `decode` covers many steps, so a trace of millions of rows becomes some hundred segments a sequence.

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass, field

from folovllm.tracing.reader import Row, Trace, endings, rows_of
from folovllm.tracing.records import Step

KINDS = ("waiting", "prefill", "decode", "idle", "preempted", "swapped")


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
    """Its number, as Trace.walk() has it; -1 where it came before the trace."""
    id: str
    born: int
    """In which step it is seen first: its place in the trace."""
    arrival: int | None
    """As Step.t; None where the request came before the trace."""
    segments: list[Segment] = field(default_factory=list)
    reason: str | None = None
    ended_at: int | None = None
    """The step after which it had ended."""
    found: int = 0
    """Tokens that it did not have to compute, over its whole life."""
    _resting: str = "waiting"
    """What it does in a step that computes nothing of it."""
    _computed: int = 0
    _bounds: list[tuple[int, int]] = field(default_factory=list)

    def when(self, segment: Segment) -> tuple[int, int]:
        """Microseconds from the begin of its first step to the end of its last. Waiting begins with the arrival."""
        begin = self._bounds[segment.first][0]
        if segment is self.segments[0] and segment.kind == "waiting" and self.arrival is not None:
            begin = min(begin, self.arrival)
        return begin, self._bounds[segment.last][1]

    def extend(self, place: int, row: Row | None) -> None:
        """One step more."""
        if row is None:
            kind, start, num_tokens = self._resting, self._computed, 0
        else:
            kind, start, num_tokens = "prefill" if row.kind == "fork" else row.kind, row.start, row.num_tokens
            self._resting, self._computed = "idle", start + num_tokens
        last = self.segments[-1] if self.segments else None
        # Chunks of a prompt stay apart, so that each is seen, and so does a step that brought several tokens.
        is_apart = (
            kind == "prefill" or num_tokens > 1 or (last is not None and last.num_tokens > last.last - last.first + 1)
        )
        if last is not None and last.kind == kind and last.last == place - 1 and not is_apart:
            last.last = place
            last.num_tokens += num_tokens
        else:
            self.segments.append(Segment(kind, place, place, start, num_tokens))


def bounds(steps: list[Step]) -> list[tuple[int, int]]:
    """When each step has the floor: from its begin to the begin of the next, the last one to its end."""
    ends = [step.t for step in steps[1:]] + [step.t + sum(step.times) for step in steps[-1:]]
    return [(step.t, max(step.t, end)) for step, end in zip(steps, ends, strict=True)]


def lanes_of(trace: Trace) -> list[Lane]:
    """In the order in which they came. Steps of segments are places in trace.steps."""
    places, arrivals = bounds(trace.steps), list[int]()
    lanes, by_id, alive = list[Lane](), dict[tuple[int, str], Lane](), dict[int, Lane]()
    for (place, record, numbers), ends in zip(trace.walk(), endings(trace), strict=True):

        def lane_of(
            seq_id: str, request: int | None = None, place: int = place, numbers: dict[str, int] = numbers
        ) -> Lane:
            request = numbers.get(seq_id.rpartition("-")[0], -1) if request is None else request
            if (lane := by_id.get((request, seq_id))) is None:
                arrival = arrivals[request] if request >= 0 else None
                lane = by_id[request, seq_id] = Lane(len(lanes), request, seq_id, place, arrival, _bounds=places)
                alive[lane.number] = lane
                lanes.append(lane)
            return lane

        def end(*, before: bool, place: int = place, ends: list[tuple[int, str, str, bool]] = ends) -> None:
            for request, seq_id, reason, is_before in ends:
                if is_before is before and alive.pop((lane := lane_of(seq_id, request)).number, False):
                    lane.reason, lane.ended_at = reason, place - before

        for arrival in record.arrived:
            arrivals.append(arrival.t)
            lane_of(f"{arrival.id}-0", len(arrivals) - 1)
        for seq_id, found in record.admitted:
            lane_of(seq_id)._resting, lane_of(seq_id).found = "idle", lane_of(seq_id).found + found
            lane_of(seq_id)._computed = found
        for seq_id in record.resumed:
            lane_of(seq_id)._resting = "idle"
        for parent, child in record.branched:
            lane_of(child)._resting, lane_of(child)._computed = "idle", lane_of(parent)._computed
        for seq_id, how in record.preempted:
            lane_of(seq_id)._resting = "swapped" if how == "swap" else "preempted"
            lane_of(seq_id)._computed *= how == "swap"
        end(before=True)
        busy = {lane_of(row.seq_id).number: row for row in rows_of(record)}
        for lane in alive.values():
            lane.extend(place, busy.get(lane.number))
            if record.failed and lane._resting != "waiting":
                lane._resting, lane._computed = "preempted", 0
        end(before=False)
    for lane in alive.values():
        if trace.end is not None and lane.id in trace.end.finished:
            lane.reason, lane.ended_at = dict(trace.end.ended).get(lane.id, "abort"), len(places) - 1
    return lanes
