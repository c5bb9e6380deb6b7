"""Where the time of a request goes on its way through an engine under load: every part of it, by one clock.

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

import argparse
import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any, cast

from folovllm.bench.arrivals import Arrivals, add_arrivals, arrivals_of
from folovllm.bench.load_requests import LoadRequest, Work, random_work
from folovllm.bench.metrics import PERCENTILES, RequestTimes, percentile
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed, command_line, source
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.serve_load import SIZES, USUAL, WARM_UP, engine_options, measure_in_turn, report_of
from folovllm.bench.server import InProcessServer
from folovllm.bench.workload import progress_bar, require_at_least
from folovllm.config import EngineConfig
from folovllm.core.observer import EngineObserver
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.engine.input_processor import InputProcessor, Prompt
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints.cli.parser import add_engine_arguments

PARTS = ("submit wall", "add_request", "tokenise", "queue wait", "prefill to first token", "TTFT", "TPOT", "ITL",
         "latency")  # fmt: skip
COLUMNS = ["load", "part", "count", *(f"p{p}_ms" for p in PERCENTILES), "completion_tokens_per_s"]


@dataclass(slots=True)
class _Moments:
    """Of one request; perf_counter's seconds."""

    request_id: str
    added: float
    add_seconds: float
    tokenise_seconds: float | None
    scheduled: float = 0.0


class ClockedInputProcessor(InputProcessor):
    seconds: float | None = None
    """That the newest text took to be split; None: it was none."""

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        began = time.perf_counter()
        result = super()._tokenize(prompt)
        self.seconds = None if self.tokenizer is None else time.perf_counter() - began
        return result


class ClockedEngine(LLMEngine):
    """`added`: the requests that have been added since it was last cleared."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.input_processor = self._clocked = ClockedInputProcessor(
            self.tokenizer, self.runner.vocab_size, self.config
        )
        self.added: list[_Moments] = []

    def add_request(self, request_id: str, *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        super().add_request(request_id, *args, **kwargs)
        now = time.perf_counter()
        self.added.append(_Moments(request_id, now, now - began, self._clocked.seconds))


class Breakdown(EngineObserver):
    """Observes one engine. rows() is about what was answered since the last rows()."""

    def __init__(self, engine: ClockedEngine) -> None:
        self._engine = engine
        self._moments: dict[str, _Moments] = {}
        self._unscheduled: set[str] = set()
        self._began = 0.0
        self.seconds: dict[str, list[float]] = {part: [] for part in PARTS}

    def scheduling(self) -> None:
        self._began = time.perf_counter()
        for moments in self._engine.added:
            self._moments[moments.request_id] = moments
            self._unscheduled.add(moments.request_id)
        self._engine.added.clear()

    def scheduled(self, output: SchedulerOutput) -> None:
        if self._unscheduled:
            for request_id in self._unscheduled & {seq.request_id for seq in output.scheduled_seqs}:
                self._moments[request_id].scheduled = self._began
                self._unscheduled.discard(request_id)

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


class WatchedServer(InProcessServer):
    """Prompts become texts where the model has a tokenizer, since splitting them is a part of the way."""

    engine_class = ClockedEngine

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        engine = cast(ClockedEngine, self.llm.engine)
        self.breakdown = Breakdown(engine)
        engine.observers.append(self.breakdown)

    async def ask(self, request: LoadRequest) -> RequestTimes:
        if self.llm.engine.tokenizer is not None and not isinstance(request.prompt, str):
            request = replace(request, prompt=self.as_text(request.prompt))
        name, began = f"load-{self._names + 1}", time.perf_counter()
        times = await super().ask(request)
        if times.problem is None:
            self.breakdown.answered(name, began, times)
        return times

    def as_text(self, ids: list[int]) -> str:
        """A text of at most as many tokens: what ids spell may split in other places than they did."""
        tokenizer = self.llm.engine.get_tokenizer()
        while True:
            text: str = tokenizer.decode(ids)
            surplus = len(tokenizer(text)["input_ids"]) - len(ids)
            if surplus <= 0 or len(ids) <= surplus:
                return text
            ids = ids[:-surplus]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "An engine in this process under load: each part of a request's way through it."
    add_model(command)
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", help="of each load (default: 64)")
    command.add_argument("--input-len", type=int, metavar="N", help="prompt tokens of a request (default: 64)")
    command.add_argument("--output-len", type=int, metavar="N", help="new tokens of a request (default: 64)")
    add_arrivals(command)
    add_rounds(command, default=1)
    add_seed(command)
    add_output(command)
    add_engine_arguments(command)


def from_args(args: argparse.Namespace) -> Report:
    given = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    work = random_work(**given, seed=args.seed)
    loads = arrivals_of(args) or USUAL
    with source(args) as model:
        server = WatchedServer(model, engine_options(args), has_tokenizer=args.model is not None)
        return run(server, work, loads, command=command_line(args), rounds=args.rounds)


def run(server: WatchedServer, work: Work, loads: list[Arrivals], *, command: str, rounds: int = 1) -> Report:
    """Raises ValueError: a wrong option."""
    require_at_least(1, rounds=rounds)
    measured: list[list[list[Row]]] = [[[] for _ in PARTS] for _ in loads]

    def found(number: int, row: Row, _: list[str]) -> None:
        parts = server.breakdown.rows(row["load"], row["output_tokens_per_s"])
        for rows, part in zip(measured[number] if number >= 0 else (), parts, strict=False):
            rows.append(part)

    with progress_bar(1 + rounds * len(loads)) as tick:
        asyncio.run(measure_in_turn(server, work, loads, rounds, {}, tick, found))
    notes = [
        f"{medians(rounds, 'round')}, after {WARM_UP} requests to warm up. Seed {work.seed}.",
        "submit wall + queue wait + prefill to first token = TTFT; add_request and tokenise lie in submit wall.",
    ]
    rows = [rounds_of for of_load in measured for rounds_of in of_load]
    report = report_of(f"{server.label}: {work.what}", rows, command=command, notes=notes)
    report.name = "breakdown"
    return report
