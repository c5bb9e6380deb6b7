"""Requests arrive over time, in three ways, at a server whose steps last as long as M1's imagined CPU needs for them.

    closed    a fixed number of users; each sends its next request when its answer is complete
    Poisson   many independent users: requests come at random, at a mean rate
    bursty    the same mean rate, but in clumps

No model and no clock: the real scheduler decides, a step takes STEP_MS or ROW_MS for each of its rows, whichever is
more, and the time is counted. The same seed gives the same numbers on every machine.

Run it: python examples/m2_load.py
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import _tree  # noqa: F401 - folovllm is this tree's
from _scheduler import make_scheduler
from rich.console import Console
from rich.table import Table

from folovllm import Request, SamplingParams
from folovllm.config import SchedulerConfig

STEP_MS = 60.0  # to read the weights of Qwen3-0.6B once, at 20 GB/s
ROW_MS = 6.0  # to compute one row, at 200e9 operations a second
SLOTS, REQUESTS = 16, 400
PROMPT_TOKENS, OUTPUT_TOKENS = (20, 60), (20, 100)  # 40 and 60 in the mean
TTFT_MS, TPOT_MS = 1_000.0, 120.0  # what these users are content with


@dataclass
class Times:
    """When a request came, when it got its first token and when its last, in ms; and how many tokens it got."""

    arrival: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0

    @property
    def ttft(self) -> float:
        return self.first - self.arrival

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / (self.tokens - 1)


@dataclass
class Served:
    """All requests of a run, and the requests in the system (waiting or running) added up over time."""

    times: list[Times] = field(default_factory=list)
    request_ms: float = 0.0
    line: list[tuple[float, int]] = field(default_factory=list)  # (ms, how many wait), after each step

    @property
    def seconds(self) -> float:
        return max(t.last for t in self.times) / 1e3

    def mean(self, number: Callable[[Times], float]) -> float:
        return sum(map(number, self.times)) / len(self.times)

    def p99(self, number: Callable[[Times], float]) -> float:
        return sorted(map(number, self.times))[len(self.times) * 99 // 100]

    @property
    def goodput(self) -> float:
        """Requests a second that kept to both limits."""
        return sum(t.ttft <= TTFT_MS and t.tpot <= TPOT_MS for t in self.times) / self.seconds


def arrivals(rate: float, burstiness: float, requests: int = REQUESTS) -> list[float]:
    """Arrival times in ms. The gaps are gamma distributed; a burstiness of 1 makes them those of a Poisson process,
    less makes clumps (`vllm bench serve` has the same two parameters). They are scaled so that the mean rate of this
    run is `rate` to the digit: what differs between two runs is then the pattern alone."""
    rng = random.Random(1)
    gaps = [rng.gammavariate(burstiness, 1.0) for _ in range(requests)]
    scale = 1e3 * requests / rate / sum(gaps)
    return [scale * end for end in accumulate(gaps)]


def serve(coming: list[float] | None = None, users: int = 0, total: int = REQUESTS) -> Served:
    """Serve what comes at these times, or `total` requests of a closed loop of `users`."""
    scheduler = make_scheduler(SchedulerConfig(max_num_seqs=SLOTS, max_num_batched_tokens=1024, max_model_len=256))
    rng, served, requests = random.Random(2), Served(), {}
    coming = list(coming if coming is not None else [0.0] * users)
    now, unfinished = 0.0, 0
    while coming or unfinished:
        if not unfinished:
            now = max(now, coming[0])
        while coming and coming[0] <= now:
            name = str(len(served.times))
            params = SamplingParams(max_tokens=rng.randint(*OUTPUT_TOKENS), ignore_eos=True)
            requests[name] = Request(name, None, [0] * rng.randint(*PROMPT_TOKENS), params)
            scheduler.add_request(requests[name])
            served.times.append(Times(coming.pop(0)))
            unfinished += 1
        step = scheduler.schedule()
        ms = max(STEP_MS, ROW_MS * step.total_num_scheduled_tokens)
        served.request_ms += unfinished * ms
        now += ms
        for seq in step.scheduled_seqs:
            times = served.times[int(seq.request_id)]
            times.tokens, times.last = times.tokens + 1, now
            times.first = times.first or now
        for seq, ended in scheduler.update_from_output(step, [0] * len(step.scheduled_seqs)):
            if ended is not None:
                scheduler.finish(requests[seq.request_id], seq, ended)
                unfinished -= 1
                if users and len(served.times) + len(coming) < total:
                    coming.append(now)
        served.line.append((now, len(scheduler.waiting)))
    return served


def show(rows: list[tuple[str, Served]], heading: str) -> None:
    table = Table(title=heading, title_justify="left")
    for name in ("", "requests/s", "mean TTFT s", "p99 TTFT s", "mean TPOT ms", "longest line", "goodput/s"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, served in rows:
        table.add_row(
            name,
            f"{len(served.times) / served.seconds:.2f}",
            f"{served.mean(lambda t: t.ttft) / 1e3:.2f}",
            f"{served.p99(lambda t: t.ttft) / 1e3:.2f}",
            f"{served.mean(lambda t: t.tpot):.0f}",
            str(max(waiting for _, waiting in served.line)),
            f"{served.goodput:.2f}",
        )
    Console(highlight=False, width=100).print(table)


def main() -> None:
    poisson, bursty = serve(arrivals(1.2, 1)), serve(arrivals(1.2, 0.1))
    closed = serve(users=8)
    show([("closed, 8", closed), ("Poisson", poisson), ("bursty", bursty)], "The same server, three loads")
    rates = (0.6, 0.9, 1.2, 1.4, 1.5, 1.6, 1.8)
    show([(f"{rate} offered", serve(arrivals(rate, 1))) for rate in rates], "Poisson, more and more of it")
    in_system = poisson.request_ms / (poisson.seconds * 1e3)
    rate, stay = len(poisson.times) / poisson.seconds, poisson.mean(lambda t: t.last - t.arrival) / 1e3
    print(f"Little's law at 1.2: {rate:.2f} requests/s x {stay:.1f} s = {rate * stay:.1f} in the system,")
    print(f"                     counted {in_system:.1f}")


if __name__ == "__main__":
    main()
