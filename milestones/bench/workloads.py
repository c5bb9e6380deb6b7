"""What is played to the milestones, and how rows are made of what came back. Round 0 warms up.

requests        all there at the start: tokens/s, and what the KV cache holds
decode          every prompt computed before: the time of a step at several batch sizes
long-prompt     requests decode steadily, and a long prompt arrives in their midst: the worst gap, the TTFT
shared-prefix   one request after another whose prompts begin alike, and the same with nothing alike
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from folovllm.bench.lengths import Lengths
from milestones.bench.charts import draw_bars, draw_requests
from milestones.bench.play import Played, Wave, Worker, agreement, check_agreement, draw_prompt, in_turn, play
from milestones.spec import MilestoneError

Row = dict[str, Any]
Tick = Callable[[str], None]
WARM_UP_TOKENS, WARM_UP_STEPS = 4, 4
REQUESTS = [
    "milestone", "requests", "prompt_tokens", "output_tokens", "seconds", "output_tokens_per_s", "speedup",
    "mean_ttft_ms", "running_seqs", "kv_reserved_tokens", "kv_used_tokens",
]  # fmt: skip
DECODE = [
    "milestone", "batch", "context", "steps", "step_ms", "step_p90_ms", "output_tokens_per_s", "speedup",
    "same_tokens",
]  # fmt: skip
SHARED_PREFIX = [
    "milestone", "prompts", "requests", "prompt_tokens", "shared_tokens", "output_tokens", "cold_ttft_ms",
    "ttft_ms", "ttft_ratio", "seconds", "seconds_ratio", "cached_tokens", "same_tokens",
]  # fmt: skip


class Workload(Protocol):
    """One kind of measurement, and what its rounds have brought so far."""

    title: str
    columns: list[str]
    max_model_len: int
    num_seqs: int
    plays: int
    """Of each milestone in a round."""

    def play_round(self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Tick) -> None: ...
    def rows(self) -> list[Row]: ...
    def notes(self) -> list[str]: ...
    def details(self) -> Row: ...
    def draw(self, title: str) -> str: ...


def ratios(base: Sequence[float], mine: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(base, mine, strict=True))


def median_ms(seconds: Sequence[float] | Iterator[float]) -> float:
    return statistics.median(seconds) * 1e3


@dataclass
class Requests:
    lengths: Lengths
    max_model_len: int
    played: dict[str, list[Played]] = field(default_factory=dict)

    title, plays, num_seqs = "Milestones", 1, 0
    columns = REQUESTS

    def play_round(self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Tick) -> None:
        outputs = self.lengths.outputs if number else [min(n, WARM_UP_TOKENS) for n in self.lengths.outputs]
        waves = [Wave(self.lengths.make_prompts(vocab_size, number), outputs)]
        first = None
        for worker in workers:
            tick(worker.name)
            played = play(worker, waves)
            first = first or played
            check_agreement(worker.name, agreement(played, first), "float32", least=1.0)
            if number:
                self.played.setdefault(worker.name, []).append(played)

    def rows(self) -> list[Row]:
        base = statistics.median(played.seconds for played in next(iter(self.played.values())))
        rows = []
        for name, rounds in self.played.items():
            seconds, tokens = statistics.median(played.seconds for played in rounds), sum(self.lengths.outputs)
            row: Row = {
                "milestone": name,
                "requests": len(self.lengths.prompts),
                "prompt_tokens": sum(self.lengths.prompts),
            }
            row |= {"output_tokens": tokens, "seconds": seconds, "output_tokens_per_s": tokens / seconds}
            row |= {"speedup": base / seconds, "mean_ttft_ms": median_ms(statistics.mean(p.ttft) for p in rounds)}
            for key in self.columns[-3:]:  # None for a milestone that keeps no statistics
                values = [played.peak[key] for played in rounds if key in played.peak]
                row[key] = round(statistics.median(values)) if values else None
            rows.append(row)
        return rows

    def notes(self) -> list[str]:
        return [
            f"{self.lengths.describe()}; lengths uniform. All milestones gave the same tokens in every round.",
            "running_seqs: the most at once. kv: the cache's tokens when most of them were used; – where the milestone "
            "keeps no statistics.",
        ]

    def details(self) -> Row:
        return {}

    def draw(self, title: str) -> str:
        return draw_requests(title, self.rows())


@dataclass
class Decode:
    """request 0   prefill ├─┬─┬─┬─┬─┬─┬─┬─┬─┬─
    request 1     prefill ├─┬─┬─┬─┬─┬─┬─┬─┬─
                            └warm─┘└measured┘   steps in which every request gains a token"""

    batches: list[int]
    context: int
    steps: int
    dtype: str
    steps_s: dict[tuple[str, int], list[list[float]]] = field(default_factory=dict)
    shares: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    title = "Decode steps"
    columns = DECODE

    def __post_init__(self) -> None:
        self.enough, self.num_seqs, self.plays = WARM_UP_STEPS + self.steps + 1, max(self.batches), len(self.batches)
        # The first requests decode while the prompts of the last ones are computed, a few hundred tokens a step.
        self.max_tokens = self.enough + 16 + self.num_seqs * self.context // 256
        self.max_model_len = self.context + self.max_tokens

    def play_round(self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Tick) -> None:
        for batch in self.batches:
            prompts = [draw_prompt(f"{number} {batch} {i}", self.context, vocab_size) for i in range(batch)]
            played: dict[str, Played] = {}
            for worker in in_turn(workers, number):
                tick(f"batch {batch}: {worker.name}")
                played[worker.name] = play(worker, [Wave(prompts, [self.max_tokens] * batch)], self.enough)
            for worker in workers if number else []:
                self._take(worker.name, batch, played[worker.name], played[workers[0].name])

    def _take(self, name: str, batch: int, played: Played, reference: Played) -> None:
        gaps = steady_steps(played.times)[WARM_UP_STEPS:]
        if len(gaps) < self.steps:
            raise MilestoneError(
                f"{name} did not decode {batch} sequences of {self.context} tokens together for {self.steps} steps: "
                "lower --batch or --context, or give it more room by --set"
            )
        share = agreement(played, reference)
        check_agreement(name, share, self.dtype)
        self.steps_s.setdefault((name, batch), []).append(gaps[: self.steps])
        self.shares.setdefault((name, batch), []).append(share)

    def rows(self) -> list[Row]:
        """Medians of all steps; `speedup` is the median over the rounds, each round's first milestone over this one."""
        first = next(iter(self.steps_s))[0]
        rows = []
        for batch in self.batches:
            for name in dict.fromkeys(name for name, _ in self.steps_s):
                rounds, base = self.steps_s[name, batch], self.steps_s[first, batch]
                seconds = sorted(gap for gaps in rounds for gap in gaps)
                step = statistics.median(seconds)
                row: Row = {"milestone": name, "batch": batch, "context": self.context, "steps": len(seconds)}
                row |= {"step_ms": step * 1e3, "step_p90_ms": seconds[int(0.9 * (len(seconds) - 1))] * 1e3}
                row |= {"output_tokens_per_s": batch / step, "same_tokens": min(self.shares[name, batch])}
                row["speedup"] = ratios(*([statistics.median(gaps) for gaps in each] for each in (base, rounds)))
                rows.append(row)
        return rows

    def notes(self) -> list[str]:
        return [
            f"Steps in which every sequence gains a token, each with {self.context} tokens at the start; prompts are "
            f"computed before, {WARM_UP_STEPS} steps warm up, {self.steps} of each round count.",
            "speedup: the first milestone's step over this one's, the median of the rounds' ratios.",
        ]

    def details(self) -> Row:
        return {}

    def draw(self, title: str) -> str:
        rows, bars = self.rows(), []
        for row in rows:
            other = f"   ({row['speedup']:.2f} × {rows[0]['milestone']})" if row["speedup"] != 1 else ""
            rate = row["output_tokens_per_s"]
            bars.append((f"batch {row['batch']}, {row['milestone']}", rate, f"{rate:,.0f}{other}"))
        return draw_bars(f"{title}: decoded tokens/s", bars)


@dataclass
class SharedPrefix:
    """What a cache of prefixes wins is in the first kind, what it costs in the second. Each request goes to all
    milestones before the next one does, so that a slow second of the machine meets the same request of each.

    shared      ████████████████░░  cold      different   ████████████████░░
                ████████████████▒▒  warm                  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒
                └──prefix──────┘└suffix
    """

    prefix: int
    suffix: int
    requests: int
    new_tokens: int
    dtype: str
    played: dict[tuple[str, str], list[list[Played]]] = field(default_factory=dict)
    shares: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    title, num_seqs, kinds = "Prompts that begin alike", 1, ("shared", "different")
    columns = SHARED_PREFIX

    def __post_init__(self) -> None:
        self.max_model_len, self.plays = self.prefix + self.suffix + self.new_tokens, len(self.kinds) * self.requests

    def play_round(self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Tick) -> None:
        for kind in self.kinds:
            found: dict[str, list[Played]] = {worker.name: [] for worker in workers}
            for place in range(self.requests):
                prompt = self.make_prompt(kind, number, place, vocab_size)
                for worker in in_turn(workers, place + number):
                    tick(f"{kind} prompt {place + 1}: {worker.name}")
                    found[worker.name].append(play(worker, [Wave([prompt], [self.new_tokens])]))
            for worker in workers if number else []:
                pairs = zip(found[worker.name], found[workers[0].name], strict=True)
                share = statistics.mean(agreement(mine, reference) for mine, reference in pairs)
                check_agreement(worker.name, share, self.dtype)
                self.played.setdefault((worker.name, kind), []).append(found[worker.name])
                self.shares.setdefault((worker.name, kind), []).append(share)

    def make_prompt(self, kind: str, number: int, place: int, vocab_size: int) -> list[int]:
        """Fresh in each round: nobody has seen this round's prefix before its first request."""
        prefix = f"{kind} {number}" if kind == "shared" else f"{kind} {number} {place}"
        suffix = draw_prompt(f"{kind} {number} {place} suffix", self.suffix, vocab_size)
        return draw_prompt(prefix, self.prefix, vocab_size) + suffix

    def rows(self) -> list[Row]:
        """Medians over requests and rounds; a ratio compares the same request of two milestones, and is the median of
        all these. The first request of a round is left out where prompts are shared: it is the cold one."""
        names = list(dict.fromkeys(name for name, _ in self.played))
        return [self._row(name, kind, names[0]) for kind in self.kinds for name in names]

    def _row(self, name: str, kind: str, first: str) -> Row:
        rounds, base, skip = self.played[name, kind], self.played[first, kind], int(kind == "shared")
        mine, theirs = ([one for each in of for one in each[skip:]] for of in (rounds, base))
        cached = [one.cached[0] for one in mine if one.cached[0] is not None]
        row = {
            "milestone": name,
            "prompts": kind,
            "requests": self.requests,
            "same_tokens": min(self.shares[name, kind]),
        }
        row |= {"prompt_tokens": self.prefix + self.suffix, "shared_tokens": self.prefix if skip else 0}
        row |= {"output_tokens": self.new_tokens, "ttft_ms": median_ms(one.ttft[0] for one in mine)}
        row["cold_ttft_ms"] = median_ms(each[0].ttft[0] for each in rounds) if skip else None
        row["ttft_ratio"] = ratios([one.ttft[0] for one in theirs], [one.ttft[0] for one in mine])
        row["seconds"] = statistics.median(sum(one.seconds for one in each) for each in rounds)
        row["seconds_ratio"] = ratios([one.seconds for one in mine], [one.seconds for one in theirs])
        row["cached_tokens"] = round(statistics.median(cached)) if cached else None
        return row

    def notes(self) -> list[str]:
        return [
            f"{self.requests} requests one after another, prompts of {self.prefix} + {self.suffix} tokens, "
            f"{self.new_tokens} tokens of output; shared: the first {self.prefix} are the same in all of a round, and "
            "fresh in each round; different: none are.",
            "cold_ttft: of a round's first request; ttft: of the others where prompts are shared, of all where they "
            "differ. ttft_ratio: the first milestone's over this one's; seconds_ratio: this one's seconds over the "
            "first's. Both compare the same requests, one by one; medians.",
            "seconds: a round's requests together. cached: prompt tokens that were not computed.",
        ]

    def details(self) -> Row:
        return {}

    def draw(self, title: str) -> str:
        rows = [(f"{r['prompts']}, {r['milestone']}", r["ttft_ms"], f"{r['ttft_ms']:,.1f} ms") for r in self.rows()]
        return draw_bars(f"{title}: time to first token", rows)


def steady_steps(times: list[list[float]]) -> list[float]:
    """What each step took while all requests were decoding: from the last one's first token to the first one's last.

    None at all when a request missed one of these steps.
    """
    start, end = max(came[0] for came in times), min(came[-1] for came in times)
    steps = [[moment for moment in came if start <= moment <= end] for came in times]
    if any(moments != steps[0] for moments in steps):
        return []
    return [later - earlier for earlier, later in pairwise(steps[0])]
