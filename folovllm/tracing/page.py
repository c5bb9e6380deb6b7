"""The page: one HTML file with everything in it, for one trace or for two.

    web/page.html + web/style.css + web/*.js + the traces as JSON  ─▶  run.html

Every text of a trace is data. It is in the page as JSON in a script element that is never run, in which "<", ">"
and "&" are escaped, so that no text can end the element; the scripts show text by textContent and on canvases only. A
Content-Security-Policy allows these scripts and this style by their hashes and nothing else, no network above all.

vLLM: none
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from folovllm.tracing.lanes import KINDS, Lane, lanes_of
from folovllm.tracing.reader import Trace, blocks_of, endings, num_drawn, rows_of
from folovllm.tracing.summary import Latency, latencies, percentile, prefilled

SCRIPTS = ("data", "words", "paint", "timeline", "charts", "blocks", "texts", "latencies", "main")


@dataclass(slots=True)
class Said:
    """What one sequence has said."""

    steps: list[int] = field(default_factory=list)
    """In which step each token was drawn: its place in the trace."""
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Texts:
    prompts: dict[int, str]
    """By request: its beginning."""
    said: dict[tuple[int, str], Said]
    """By request and sequence. A beam is not in it: the search decides later which tokens it has."""


def make_page(traces: Sequence[Trace], texts: Sequence[Texts | None] = ()) -> str:
    """The page's HTML. One trace, or two to compare; `texts` of each, where there are.

    Raises:
        ValueError: a trace has no step.
    """
    for trace in traces:
        if not trace.steps:
            raise ValueError(f"trace {trace.name} has no step yet: nothing to show")
    style = _asset("style.css")
    script = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    policy = f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'"
    parts = {
        "POLICY": policy,
        "STYLE": style,
        "DATA": as_json([page_data(trace, said) for trace, said in zip_longest(traces, texts)]),
        "SCRIPT": script,
    }
    # In one pass: the text of one part is never taken for the place of another.
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def as_json(data: Any) -> str:
    """JSON that no HTML parser can mistake for markup."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII only
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(trace: Trace, texts: Texts | None = None) -> dict[str, Any]:
    """What the scripts get of a trace. Sequences are lanes by number; steps are places in `steps`, and
    `number` has what each is called."""
    steps, lanes, times = trace.steps, lanes_of(trace), latencies(trace)
    header, origin = trace.header, trace.origin
    names = ("clock", "model", "device", "dtype", "num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")
    return {
        "name": trace.name,
        "torn": trace.is_torn,
        "header": {name: getattr(header, name) for name in names},
        "requests": [
            {
                "id": arrival.id,
                "t": arrival.t - origin,
                "prompt_tokens": arrival.prompt_tokens,
                "number": number,
                "prompt": texts.prompts.get(number) if texts else arrival.prompt,
                **_latency(times[number]),
            }
            for number, arrival in enumerate(arrival for step in steps for arrival in step.arrived)
        ],
        "lanes": [_lane(lane) for lane in lanes],
        "texts": {
            lane.number: {"runs": _runs(said.steps), "pieces": said.pieces}
            for lane in lanes
            if (said := texts.said.get((lane.request, lane.id)))
        }
        if texts
        else None,
        "steps": {
            "number": [step.step for step in steps],
            "t": [step.t - origin for step in steps],
            "times": [took for step in steps for took in step.times],
            "prefill": [sum(row.num_tokens for row in prefilled(step)) for step in steps],
            "decode": [sum(row.kind == "decode" for row in rows_of(step)) for step in steps],
            "free": [step.free for step in steps],
            "findable": [step.findable for step in steps],
            "waiting": [step.waiting for step in steps],
            "swapped": [step.swapped for step in steps],
            "drawn": [num_drawn(step) for step in steps],
        },
        "news": _news(trace, lanes),
    }


def _latency(latency: Latency) -> dict[str, Any]:
    gaps = latency.gaps
    return {
        "ttft": latency.ttft,
        "gaps": [round(statistics.median(gaps)), percentile(gaps, 95), max(gaps)] if gaps else None,
        "tokens": sum(map(len, latency.drawn.values())),
    }


def _lane(lane: Lane) -> dict[str, Any]:
    segments = [
        number
        for segment in lane.segments
        for number in (KINDS.index(segment.kind), segment.first, segment.last, segment.start, segment.num_tokens)
    ]
    same = {name: getattr(lane, name) for name in ("request", "id", "reason", "found")}
    return {**same, "segments": segments, "ended": lane.ended_at}


def _runs(steps: list[int]) -> list[int]:
    """First step and how many, first step and how many, ...: a sequence draws in most steps."""
    runs: list[int] = []
    for step in steps:
        if runs and step == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += (step, 1)
    return runs


def _news(trace: Trace, lanes: list[Lane]) -> list[dict[str, Any]]:
    """Of each step what happened, with lanes by their numbers, and of block tables what has changed."""
    number = {(lane.request, lane.id): lane.number for lane in lanes}
    born = defaultdict(list)
    for lane in lanes:
        born[lane.born].append([lane.number])
    before: dict[int, list[int]] = {}
    restarted, found = False, []
    walks = zip(trace.walk(), blocks_of(trace), endings(trace), strict=True)
    for (place, step, requests), (_, tables, _), ends in walks:

        def of(seq_id: str, requests: dict[str, int] = requests) -> int:
            return number[requests.get(seq_id.rpartition("-")[0], -1), seq_id]

        now = {of(seq_id): table for seq_id, table in tables.items()}
        news = {
            "seqs": born[place],
            "left": [(number[request, seq_id], why) for request, seq_id, why, is_before in ends if is_before],
            "preempted": [(of(seq_id), how) for seq_id, how in step.preempted],
            "resumed": [of(seq_id) for seq_id in step.resumed],
            "branched": [(of(parent), of(child)) for parent, child in step.branched],
            "forks": [(of(parent), of(child)) for parent, child in step.forks],
            "found": [(of(seq_id), count) for seq_id, count in step.admitted if count],
            "prefill": [(of(row.seq_id), row.start, row.num_tokens) for row in prefilled(step)],
            "tables": _changed(before, now),
            "copies": step.copies,
            "swapped_out": step.swapped_out,
            "kept": step.stored,
            "evicted": step.removed,
            "forgotten": step.cleared,
            "restarted": restarted,
            "drafted": [(of(seq_id), count) for seq_id, count in step.drafted.items()],
            "later": [(of(seq_id), token) for seq_id, tokens in step.later.items() for token in tokens],
            "ended": [(number[request, seq_id], why) for request, seq_id, why, is_before in ends if not is_before],
            "failed": step.failed,
        }
        before, restarted = {} if step.failed else now, step.failed
        found.append({name: value for name, value in news.items() if value})
    return found


def _changed(before: dict[int, list[int]], now: dict[int, list[int]]) -> list[tuple[int, int, list[int]]]:
    """(lane, place, blocks): from that place on, its table is these blocks. One that is the same list is not read."""
    changed: list[tuple[int, int, list[int]]] = [(lane, 0, []) for lane in before if lane not in now]
    for lane, table in now.items():
        old = before.get(lane, [])
        if table is not old:
            same = next(
                (i for i, (a, b) in enumerate(zip(old, table, strict=False)) if a != b), min(len(old), len(table))
            )
            changed.append((lane, same, table[same:]))
    return changed


def _asset(name: str) -> str:
    return files("folovllm.tracing").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
