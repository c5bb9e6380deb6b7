"""`--workload long-prompt`: requests that decode steadily, and a long prompt that arrives in their midst.

    request 0   ├─┬─┬─┬─┬──────────────┬─┬─┬─     the prompt in one step: everybody waits for it
    request 1   ├─┬─┬─┬─┬──────────────┬─┬─┬─
    the prompt          ├──────────────┬─┬─┬─
                        arrival        first token: TTFT
                        └──worst gap───┘

With --shorts, as many short prompts come right behind it: how long does the last of them wait for its first token?
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from milestones.bench.charts import draw_gaps, draw_sweep
from milestones.bench.process import Worker
from milestones.bench.timeline import Played, Wave, agreement, check_agreement, draw_prompt, in_turn, play

STEADY_PROMPT = 32  # tokens of each of the steady requests' prompts, and of the short ones behind the long one
WARM_UP_TOKENS = 4
COLUMNS = [
    "milestone", "decodes", "prompt_tokens", "output_tokens", "gap_p50_ms", "worst_gap_ms", "worst_gap_ratio",
    "ttft_ms", "seconds", "output_tokens_per_s", "throughput_ratio", "same_tokens",
]  # fmt: skip


@dataclass
class LongPromptWorkload:
    """`names` are the milestones of the workers, `swept` what a sweep of a `field` gives each of them."""

    names: dict[str, str]
    decodes: int
    long_len: int
    new_tokens: int
    dtype: str
    shorts: int = 0
    swept_field: str = ""
    swept: dict[str, int | None] = field(default_factory=dict)
    played: dict[str, list[Played]] = field(default_factory=dict)
    shares: dict[str, list[float]] = field(default_factory=dict)

    plays = 2  # of each engine in a round: one to warm up, one that counts

    @property
    def columns(self) -> list[str]:
        columns = [*COLUMNS[:1], *([self.swept_field] if self.swept else []), *COLUMNS[1:]]
        if self.shorts:
            columns[columns.index("ttft_ms") + 1 : columns.index("ttft_ms") + 1] = ["shorts", "short_ttft_ms"]
        return columns

    @property
    def max_model_len(self) -> int:
        return max(self.long_len, STEADY_PROMPT) + self.new_tokens

    @property
    def num_seqs(self) -> int:
        return self.decodes + 1 + self.shorts

    @property
    def quarter(self) -> int:
        """The long prompt comes when a quarter of the steady requests' tokens are there, and has as many outputs."""
        return max(1, self.new_tokens // 4)

    def play_round(self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Callable[[str], None]) -> None:
        if number == 0:  # each round warms itself up
            return
        played: dict[str, Played] = {}
        for worker in in_turn(workers, number):
            tick(f"warm-up: {worker.name}")
            play(worker, self._waves(f"warm-up {number}", vocab_size, min(self.new_tokens, WARM_UP_TOKENS), 1))
            tick(f"{self.decodes} decodes and a prompt: {worker.name}")
            played[worker.name] = play(worker, self._waves(str(number), vocab_size, self.new_tokens, self.quarter))
        for worker in workers:
            share = agreement(played[worker.name], played[workers[0].name])
            check_agreement(worker.name, share, self.dtype)
            self.played.setdefault(worker.name, []).append(played[worker.name])
            self.shares.setdefault(worker.name, []).append(share)

    def _waves(self, seed: str, vocab_size: int, new_tokens: int, after: int) -> list[Wave]:
        steady = [draw_prompt(f"{seed} {i}", STEADY_PROMPT, vocab_size) for i in range(self.decodes)]
        long = draw_prompt(f"{seed} long", self.long_len, vocab_size)
        shorts = [draw_prompt(f"{seed} short {i}", STEADY_PROMPT, vocab_size) for i in range(self.shorts)]
        behind = Wave([long, *shorts], [after] * (1 + self.shorts), after=after)
        return [Wave(steady, [new_tokens] * self.decodes), behind]

    def rows(self) -> list[dict[str, Any]]:
        """Medians over the rounds; the ratios are medians of the rounds' ratios."""
        base = next(iter(self.played.values()))
        rows = []
        for name, rounds in self.played.items():
            gaps = [self._gaps(played) for played in rounds]
            worst = [max(of_round) for of_round in gaps]
            seconds = statistics.median(played.seconds for played in rounds)
            tokens = sum(map(len, rounds[0].tokens))
            row: dict[str, Any] = {"milestone": self.names[name]}
            row |= {self.swept_field: self.swept[name]} if self.swept else {}
            worst_ratios = [max(self._gaps(b)) / w for b, w in zip(base, worst, strict=True)]
            speed_ratios = [b.seconds / played.seconds for b, played in zip(base, rounds, strict=True)]
            row |= {
                "decodes": self.decodes,
                "prompt_tokens": self.long_len,
                "output_tokens": tokens,
                "gap_p50_ms": statistics.median(statistics.median(of_round) for of_round in gaps) * 1e3,
                "worst_gap_ms": statistics.median(worst) * 1e3,
                "worst_gap_ratio": statistics.median(worst_ratios),
                "ttft_ms": statistics.median(played.ttft[self.decodes] for played in rounds) * 1e3,
                "shorts": self.shorts,
                "short_ttft_ms": statistics.median(self._short_ttft(played) for played in rounds) * 1e3,
                "seconds": seconds,
                "output_tokens_per_s": tokens / seconds,
                "throughput_ratio": statistics.median(speed_ratios),
                "same_tokens": min(self.shares[name]),
            }
            rows.append({column: row[column] for column in self.columns})
        return rows

    def _short_ttft(self, played: Played) -> float:
        return max(played.ttft[self.decodes + 1 :], default=0.0)

    def _gaps(self, played: Played) -> list[float]:
        return [gap for _, gap in steady_gaps(played, self.decodes)]

    def notes(self) -> list[str]:
        base = "the first row's" if self.swept else "the first milestone's"
        shorts = (
            f" {self.shorts} prompts of {STEADY_PROMPT} tokens come right behind it and get as many; short_ttft: of "
            "the one that waits longest."
        )
        return [
            f"{self.decodes} requests decode, {self.new_tokens} tokens each; when they have {self.quarter} each, a "
            f"prompt of {self.long_len} tokens arrives and gets {self.quarter} tokens. gap: between two tokens of one "
            f"of the {self.decodes}, all of which have begun. ttft: of the long prompt. Each run comes after a short "
            "one that warms up." + (shorts if self.shorts else ""),
            f"worst_gap_ratio: {base} worst gap over this one; throughput_ratio: this tokens/s over {base}.",
        ]

    def details(self) -> dict[str, Any]:
        """A round's gaps over time, for each engine: when (seconds), how long (ms)."""
        return {"gaps": {name: self._picture(name) for name in self.played}}

    def _picture(self, name: str) -> dict[str, Any]:
        """The round whose worst gap is the median (the lower of two)."""
        rounds = sorted(self.played[name], key=lambda played: max(self._gaps(played)))
        played = rounds[(len(rounds) - 1) // 2]
        points: dict[float, float] = {}
        for moment, gap in steady_gaps(played, self.decodes):
            points[moment] = max(gap, points.get(moment, 0.0))
        return {
            "arrival_s": round(played.arrivals[self.decodes], 6),
            "first_token_s": round(played.times[self.decodes][0], 6),
            "points": [[round(moment, 6), round(gap * 1e3, 4)] for moment, gap in sorted(points.items())],
        }

    def draw(self, title: str) -> str:
        if self.swept_field == "max_num_batched_tokens":
            return draw_sweep(title, self.rows())
        return draw_gaps(title, self.details()["gaps"])


def steady_gaps(played: Played, decodes: int) -> list[tuple[float, float]]:
    """(when it ended, how long it was) for each gap of the first `decodes` requests after all of them have begun."""
    begun = max(times[0] for times in played.times[:decodes])
    return [
        (later, later - earlier)
        for times in played.times[:decodes]
        for earlier, later in pairwise(times)
        if earlier >= begun
    ]
