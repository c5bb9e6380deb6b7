"""Where the time of a request goes on its way through an engine: every part of it, by one clock.

    generate()   add_request begins · ends      first scheduled          first token            last token
        │─────────────────│────────────│──────────────│───────────────────────│──────────────────────│
        │         submit wall          │  queue wait  │ prefill, first token  │
        │                 │add_request │                                      │
        │                 │ tokenise                                          │
        └─────────────────────────── TTFT ────────────────────────────────────┘
        └─────────────────────────────────── latency ────────────────────────────────────────────────┘

AsyncLLM hands a request over between two steps, so the wall of submitting holds the rest of the step that runs. Submit
wall, queue wait and prefill are together the TTFT.

vLLM: v1/metrics/stats.py (RequestStateStats)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from folovllm.bench.metrics import PERCENTILES, RequestTimes, percentile
from folovllm.bench.report import Row
from folovllm.engine.llm_engine import LLMEngine
from folovllm.tracing.wraps import Wraps

PARTS = ("submit wall", "add_request", "tokenise", "queue wait", "prefill to first token", "TTFT", "TPOT", "ITL",
         "latency")  # fmt: skip
COLUMNS = ["load", "part", "count", *(f"p{p}_ms" for p in PERCENTILES), "completion_tokens_per_s"]


@dataclass(slots=True)
class _Moments:
    """Of one request; perf_counter's seconds."""

    added: float
    add_seconds: float
    tokenise_seconds: float | None
    scheduled: float = 0.0


class Breakdown:
    """Watches one engine from attach() to detach(). rows() is about what was answered since the last rows()."""

    def __init__(self) -> None:
        self._wraps = Wraps()
        self._moments: dict[str, _Moments] = {}
        self._unscheduled: set[str] = set()
        self._tokenise: float | None = None
        self.seconds: dict[str, list[float]] = {part: [] for part in PARTS}

    def attach(self, engine: LLMEngine) -> None:
        self._wraps.around(engine, "add_request", self._adding)
        if engine.tokenizer is not None:  # else there is nothing to split
            self._wraps.around(engine.input_processor, "_tokenize", self._tokenising)
        self._wraps.around(engine.scheduler, "schedule", self._scheduling)

    def detach(self) -> None:
        self._wraps.undo()

    def _adding(self, add_request: Callable[..., None]) -> Callable[..., None]:
        def added(request_id: str, *args: Any, **kwargs: Any) -> None:
            self._tokenise, began = None, time.perf_counter()
            add_request(request_id, *args, **kwargs)
            now = time.perf_counter()
            self._moments[request_id] = _Moments(now, now - began, self._tokenise)
            self._unscheduled.add(request_id)

        return added

    def _tokenising(self, tokenize: Callable[..., Any]) -> Callable[..., Any]:
        def tokenised(*args: Any) -> Any:
            began = time.perf_counter()
            result = tokenize(*args)
            self._tokenise = time.perf_counter() - began
            return result

        return tokenised

    def _scheduling(self, schedule: Callable[[], Any]) -> Callable[[], Any]:
        def scheduled() -> Any:
            began = time.perf_counter()
            output = schedule()
            if self._unscheduled:
                for request_id in self._unscheduled & {seq.request_id for seq in output.scheduled_seqs}:
                    self._moments[request_id].scheduled = began
                    self._unscheduled.discard(request_id)
            return output

        return scheduled

    def answered(self, request_id: str, began: float, times: RequestTimes) -> None:
        """`began`: when the client asked, by perf_counter."""
        moments = self._moments.pop(request_id)
        parts = {
            "submit wall": [moments.added - began],
            "add_request": [moments.add_seconds],
            "tokenise": [] if moments.tokenise_seconds is None else [moments.tokenise_seconds],
            "queue wait": [moments.scheduled - moments.added],
            "prefill to first token": [began + times.ttft - moments.scheduled],
            "TTFT": [times.ttft],
            "TPOT": [times.tpot] if times.num_tokens > 1 else [],
            "ITL": times.itl,
            "latency": [times.e2el],
        }
        for part, seconds in parts.items():
            self.seconds[part] += seconds

    def rows(self, load: str, tokens_per_s: float) -> list[Row]:
        """A row for each part, None where there was nothing of it; starts over."""
        found: list[Row] = []
        for part, seconds in self.seconds.items():
            row: Row = {"load": load, "part": part, "count": len(seconds)}
            row |= {f"p{p}_ms": percentile(seconds, p) * 1e3 if seconds else None for p in PERCENTILES}
            found.append(row | {"completion_tokens_per_s": tokens_per_s})
        self.seconds = {part: [] for part in PARTS}
        return found
