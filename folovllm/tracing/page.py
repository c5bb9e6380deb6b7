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
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from folovllm.tracing.lanes import KINDS, Lane, lanes_of
from folovllm.tracing.reader import Trace
from folovllm.tracing.schema import StepRecord
from folovllm.tracing.summary import Latency, latencies, num_drawn, percentile

SCRIPTS = ("data", "words", "paint", "timeline", "charts", "blocks", "texts", "latencies", "main")

# Of a record, what the page needs beyond the columns of `steps`: the names as in the record.
_NEWS = (
    "seqs", "left", "preempted", "resumed", "branched", "found", "prefill", "forks", "tables", "copies", "swapped_out",
    "swapped_in", "kept", "evicted", "forgotten", "restarted", "first", "drafted", "later", "ended", "failed",
)  # fmt: skip


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
    said: dict[int, Said]
    """By sequence. A beam is not in it: the search decides later which tokens it has."""


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
    arrivals = [arrival for step in steps for arrival in step.arrived]
    header = trace.header
    names = ("clock", "model", "device", "dtype", "num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")
    return {
        "name": trace.name,
        "torn": trace.is_torn,
        "header": {name: getattr(header, name) for name in names},
        "requests": [
            {
                **{name: getattr(arrival, name) for name in ("id", "t", "prompt_tokens")},
                "number": arrival.request,
                "prompt": texts.prompts.get(arrival.request) if texts else arrival.prompt,
                **_latency(times[arrival.request]),
            }
            for arrival in arrivals
        ],
        "lanes": [_lane(lane) for lane in lanes],
        "texts": {number: {"runs": _runs(said.steps), "pieces": said.pieces} for number, said in texts.said.items()}
        if texts
        else None,
        "steps": {
            "number": [step.step for step in steps],
            "t": [step.t for step in steps],
            "times": [took for step in steps for took in step.times],
            "prefill": [sum(num for _, _, num in step.prefill) for step in steps],
            "decode": _decoding(steps),
            "free": [step.free for step in steps],
            "findable": [step.findable for step in steps],
            "waiting": [step.waiting for step in steps],
            "swapped": [step.swapped for step in steps],
            "drawn": [num_drawn(step) for step in steps],
        },
        "news": [_news(step) for step in steps],
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


def _decoding(steps: list[StepRecord]) -> list[int]:
    """How many sequences decode in each step."""
    counts, last = [], 0
    for step in steps:
        if step.decode is not None:
            last = len(step.decode)
        elif step.restarted:
            last = 0
        counts.append(last)
    return counts


def _news(step: StepRecord) -> dict[str, Any]:
    return {name: value for name in _NEWS if (value := getattr(step, name))}


def _asset(name: str) -> str:
    return files("folovllm.tracing").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
