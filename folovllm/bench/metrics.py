"""From the times of single requests to what is said of a load: percentiles, goodput, throughput.

    sent ──────── TTFT ────────▶ first token ── ITL ─▶ · ── ITL ─▶ last          TPOT = (last − first) / (tokens − 1)
    └──────────────────────────── E2EL ──────────────────────────────┘

Nothing here knows how the times were found: a clock beside an engine, a client of a server, or a simulation.

vLLM: benchmarks/serve.py (calculate_metrics)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from folovllm.bench.report import Row

PERCENTILES = (50, 95, 99)
GOALS = ("ttft", "tpot", "e2el")
"""What a limit may be set for; the names are vLLM's. ITL has none: it belongs to a token, goodput counts requests."""


@dataclass(slots=True)
class RequestTimes:
    """One request. `arrivals`: when output came, in seconds since the request was sent; several tokens may come at
    once, so it may be shorter than `num_tokens`. `problem` is what went wrong instead."""

    arrivals: list[float] = field(default_factory=list)
    num_tokens: int = 0
    e2el: float = 0.0
    problem: str | None = None
    queue: float | None = None
    """Until the step began that scheduled its first tokens, where the server says so."""

    @property
    def ttft(self) -> float:
        """Time to first token. Raises IndexError: there was none."""
        return self.arrivals[0]

    @property
    def tpot(self) -> float:
        """Time per output token after the first; 0 where there is no second."""
        return (self.arrivals[-1] - self.arrivals[0]) / max(self.num_tokens - 1, 1)

    @property
    def itl(self) -> list[float]:
        """The gaps between outputs: one number for each but the first."""
        return [after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def end(self, began: float) -> None:
        """The request that was sent at `began`, by perf_counter, is over."""
        self.e2el = time.perf_counter() - began
        if self.problem is None and not self.arrivals:
            self.problem = "the answer had no tokens"

    def meets(self, goals: Mapping[str, float]) -> bool:
        """Whether it was as fast as `goals`, in milliseconds, ask. A failed request meets none."""
        return self.problem is None and all(getattr(self, name) * 1e3 <= limit for name, limit in goals.items())


# No numpy here: the simulator runs in a reader's browser, too, which has none.
def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks, as numpy does it. `percent` from 0 to 100.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("percentile needs at least one value, got none")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def percentiles_ms(name: str, seconds: Sequence[float]) -> Row:
    """{"ttft_p50_ms": …, …}; None where there is no value."""
    return {f"{name}_p{p:g}_ms": percentile(seconds, p) * 1e3 if seconds else None for p in PERCENTILES}


def load_row(answers: Sequence[RequestTimes], seconds: float, goals: Mapping[str, float]) -> Row:
    """All requests of a load that took `seconds`. `goodput_per_s` counts those that meet every goal; None without."""
    good = [answer for answer in answers if answer.problem is None]
    row: Row = {
        "answered": len(good),
        "failed": len(answers) - len(good),
        "seconds": seconds,
        "requests_per_s": len(good) / seconds,
        "output_tokens_per_s": sum(answer.num_tokens for answer in good) / seconds,
        "goodput_per_s": sum(answer.meets(goals) for answer in good) / seconds if goals else None,
    }
    waits = [answer.queue for answer in good if answer.queue is not None]
    if waits:
        row |= percentiles_ms("queue", waits)
    row |= percentiles_ms("ttft", [answer.ttft for answer in good])
    # A request of one token has no time per further one, and must not pull the percentile down to 0.
    row |= percentiles_ms("tpot", [answer.tpot for answer in good if answer.num_tokens > 1])
    row |= percentiles_ms("itl", [gap for answer in good for gap in answer.itl])
    return row | percentiles_ms("e2el", [answer.e2el for answer in good])


def parse_goals(texts: Sequence[str]) -> dict[str, float]:
    """["ttft:200", "tpot:50"] -> milliseconds by name.

    Raises:
        ValueError: an unknown name, the same name twice, or a limit that is no positive number.
    """
    goals: dict[str, float] = {}
    for text in texts:
        name, _, limit = text.partition(":")
        try:
            value = float(limit)
        except ValueError:
            value = 0.0
        if name not in GOALS or not value > 0:
            raise ValueError(f"goodput must be of {', '.join(f'{goal}:MS' for goal in GOALS)}, got {text!r}")
        if name in goals:
            raise ValueError(f"goodput must have one limit for each, got two for {name!r}")
        goals[name] = value
    return goals
