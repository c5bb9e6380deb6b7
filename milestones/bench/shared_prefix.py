"""`--workload shared-prefix`: requests one after another, whose prompts begin alike; and the same with nothing alike.

    shared      ████████████████░░  cold      different   ████████████████░░
                ████████████████▒▒  warm                  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒
                ████████████████▓▓  warm                  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▓▓
                └──prefix──────┘└suffix

What a cache of prefixes wins is in the first, what it costs in the second. Each request goes to all milestones before
the next one does, so that a slow second of the machine meets the same request of each.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from milestones.bench.charts import draw_bars
from milestones.bench.process import Worker
from milestones.bench.timeline import Played, Wave, agreement, check_agreement, draw_prompt, in_turn, play

KINDS = ("shared", "different")
COLUMNS = [
    "milestone", "prompts", "requests", "prompt_tokens", "shared_tokens", "output_tokens", "cold_ttft_ms", "ttft_ms",
    "ttft_ratio", "seconds", "seconds_ratio", "cached_tokens", "same_tokens",
]  # fmt: skip


@dataclass
class PrefixWorkload:
    """Collects, by milestone and kind of prompts, each round's requests in their order."""

    prefix: int
    suffix: int
    requests: int
    new_tokens: int
    dtype: str
    played: dict[tuple[str, str], list[list[Played]]] = field(default_factory=dict)
    shares: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    columns = COLUMNS
    num_seqs = 1

    @property
    def max_model_len(self) -> int:
        return self.prefix + self.suffix + self.new_tokens

    @property
    def plays(self) -> int:
        return len(KINDS) * self.requests

    def play_round(self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Callable[[str], None]) -> None:
        for kind in KINDS:
            found: dict[str, list[Played]] = {worker.name: [] for worker in workers}
            for place in range(self.requests):
                prompt = self.make_prompt(kind, number, place, vocab_size)
                for worker in in_turn(workers, place + number):
                    tick(f"{kind} prompt {place + 1}: {worker.name}")
                    found[worker.name].append(play(worker, [Wave([prompt], [self.new_tokens])]))
            if number == 0:
                continue
            for worker in workers:
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

    def rows(self) -> list[dict[str, Any]]:
        """Medians over requests and rounds; a ratio compares the same request of two milestones, and is the median of
        all these. The first request of a round is left out where prompts are shared: it is the cold one."""
        first = next(iter(self.played))[0]
        return [
            self._row(name, kind, first) for kind in KINDS for name in dict.fromkeys(name for name, _ in self.played)
        ]

    def _row(self, name: str, kind: str, first: str) -> dict[str, Any]:
        rounds, base = self.played[name, kind], self.played[first, kind]
        skip = int(kind == "shared")
        counted = [
            pair
            for mine, theirs in zip(rounds, base, strict=True)
            for pair in zip(mine[skip:], theirs[skip:], strict=True)
        ]
        cached = [mine.cached[0] for mine, _ in counted if mine.cached[0] is not None]
        return {
            "milestone": name,
            "prompts": kind,
            "requests": self.requests,
            "prompt_tokens": self.prefix + self.suffix,
            "shared_tokens": self.prefix if kind == "shared" else 0,
            "output_tokens": self.new_tokens,
            "cold_ttft_ms": statistics.median(mine[0].ttft[0] for mine in rounds) * 1e3 if skip else None,
            "ttft_ms": statistics.median(mine.ttft[0] for mine, _ in counted) * 1e3,
            "ttft_ratio": statistics.median(theirs.ttft[0] / mine.ttft[0] for mine, theirs in counted),
            "seconds": statistics.median(sum(mine.seconds for mine in of_round) for of_round in rounds),
            "seconds_ratio": statistics.median(mine.seconds / theirs.seconds for mine, theirs in counted),
            "cached_tokens": round(statistics.median(cached)) if cached else None,
            "same_tokens": min(self.shares[name, kind]),
        }

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

    def details(self) -> dict[str, Any]:
        return {}

    def draw(self, title: str) -> str:
        bars = [
            (f"{row['prompts']}, {row['milestone']}", row["ttft_ms"], f"{row['ttft_ms']:,.1f} ms")
            for row in self.rows()
        ]
        return draw_bars(f"{title}: time to first token", bars)
