"""What is kept of a million requests: three numbers of each, and a histogram of the gaps between tokens.

    TTFT, TPOT, E2EL   one number a request, 8 bytes each: exact percentiles
    ITL                one number a token: counted in bins that are 1% apart

The row that it makes has the names of folovllm/bench/metrics.py.

vLLM: benchmarks/serve.py (calculate_metrics)
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

from folovllm.bench.metrics import PERCENTILES, percentiles_ms
from folovllm.bench.report import Row

BIN = math.log(1.01)


class Gaps:
    """A histogram of seconds. A percentile of it is off by half a bin at most, 0.5%."""

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self.count = 0
        self._place, self._low, self._high = 0, 0.0, 0.0  # the newest bin and its ends

    def add(self, seconds: float, count: int = 1) -> None:
        if not self._low < seconds < self._high:  # else as in the step before, as a rule
            self._place = round(math.log(max(seconds, 1e-9)) / BIN)
            self._low, self._high = math.exp((self._place - 0.499) * BIN), math.exp((self._place + 0.499) * BIN)
        self._bins[self._place] = self._bins.get(self._place, 0) + count
        self.count += count

    def percentile(self, percent: float) -> float | None:
        """None of none."""
        rank = (self.count - 1) * percent / 100
        for place in sorted(self._bins):
            rank -= self._bins[place]
            if rank < 0:
                return math.exp(place * BIN)
        return None


class Meter:
    """Args:
    goals: milliseconds by name, as parse_goals() gives them.
    """

    def __init__(self, goals: Mapping[str, float] | None = None) -> None:
        self.goals = dict(goals or {})
        self.ttft, self.tpot, self.e2el = array("d"), array("d"), array("d")
        self.urgent_ttft = array("d")  # of requests with a priority below 0
        self.itl = Gaps()
        self.prompt_tokens = self.output_tokens = self.finished = self.refused = self.good = 0

    def finish(
        self, arrival: float, first: float, last: float, prompt_tokens: int, output_tokens: int, *, urgent: bool = False
    ) -> None:
        """A request has ended; the times are readings of the simulation's clock, in seconds."""
        self.finished += 1
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        found = {"ttft": first - arrival, "tpot": 0.0, "e2el": last - arrival}
        self.ttft.append(found["ttft"])
        self.e2el.append(found["e2el"])
        if urgent:
            self.urgent_ttft.append(found["ttft"])
        if output_tokens > 1:
            found["tpot"] = (last - first) / (output_tokens - 1)
            self.tpot.append(found["tpot"])
        self.good += all(found[name] * 1e3 <= limit for name, limit in self.goals.items())

    def row(self, seconds: float) -> Row:
        """Of a load that took `seconds` of simulated time."""
        seconds = max(seconds, 1e-12)
        row: Row = {
            "answered": self.finished,
            "failed": self.refused,
            "seconds": seconds,
            "requests_per_s": self.finished / seconds,
            "output_tokens_per_s": self.output_tokens / seconds,
        }
        row |= {"goodput_per_s": self.good / seconds} if self.goals else {}
        row |= percentiles_ms("ttft", self.ttft)
        row |= percentiles_ms("tpot", self.tpot)
        gaps = {p: self.itl.percentile(p) for p in PERCENTILES}
        row |= {f"itl_p{p:g}_ms": None if gap is None else gap * 1e3 for p, gap in gaps.items()}
        return row | percentiles_ms("e2el", self.e2el)
