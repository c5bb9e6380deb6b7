"""`--workload long-prompt`: requests that decode steadily, and a long prompt that arrives in their midst."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from milestones.bench.charts import draw_gaps, draw_sweep
from milestones.bench.play import Played, Wave, Worker, agreement, check_agreement, draw_prompt, in_turn, play
from milestones.bench.workloads import WARM_UP_TOKENS, Row, Tick, median_ms, ratios

STEADY_PROMPT = 32  # tokens of each of the steady requests' prompts, and of the short ones behind the long one


@dataclass
class LongPrompt:
    """request 0   ├─┬─┬─┬─┬──────────────┬─┬─┬─     the prompt in one step: everybody waits for it
    the prompt             ├──────────────┬─┬─┬─
                           arrival        first token: TTFT
                           └──worst gap───┘

    `names` are the milestones of the workers, `swept` what a sweep of a `field` gives each of them. With `shorts`, as
    many short prompts come right behind the long one.
    """

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

    title, plays = "A long prompt among decodes", 2  # one to warm up, one that counts

    def __post_init__(self) -> None:
        # The long prompt comes when a quarter of the steady requests' tokens are there, and has as many outputs.
        self.quarter = max(1, self.new_tokens // 4)
        self.max_model_len = max(self.long_len, STEADY_PROMPT) + self.new_tokens
        self.num_seqs = self.decodes + 1 + self.shorts
        self.columns = [
            "milestone", *([self.swept_field] if self.swept else []), "decodes", "prompt_tokens", "output_tokens",
            "gap_p50_ms", "worst_gap_ms", "worst_gap_ratio", "ttft_ms",
            *(["shorts", "short_ttft_ms"] if self.shorts else []), "seconds", "output_tokens_per_s",
            "throughput_ratio", "same_tokens",
        ]  # fmt: skip

    def play_round(self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Tick) -> None:
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

    def rows(self) -> list[Row]:
        """Medians over the rounds; the ratios are medians of the rounds' ratios."""
        base = next(iter(self.played.values()))
        base_worst = [max(self._gaps(played)) for played in base]
        rows = []
        for name, rounds in self.played.items():
            gaps = [self._gaps(played) for played in rounds]
            worst, seconds = [max(of_round) for of_round in gaps], [played.seconds for played in rounds]
            tokens = sum(map(len, rounds[0].tokens))
            row: Row = {"milestone": self.names[name], "decodes": self.decodes, "prompt_tokens": self.long_len}
            row |= {self.swept_field: self.swept.get(name), "shorts": self.shorts, "output_tokens": tokens}
            row |= {"gap_p50_ms": median_ms(map(statistics.median, gaps)), "worst_gap_ms": median_ms(worst)}
            row |= {"worst_gap_ratio": ratios(base_worst, worst), "same_tokens": min(self.shares[name])}
            row |= {"ttft_ms": median_ms(played.ttft[self.decodes] for played in rounds)}
            shorts = (max(played.ttft[self.decodes + 1 :], default=0.0) for played in rounds)
            row |= {"short_ttft_ms": median_ms(shorts), "seconds": statistics.median(seconds)}
            row |= {"output_tokens_per_s": tokens / row["seconds"]}
            row["throughput_ratio"] = ratios([played.seconds for played in base], seconds)
            rows.append(row)
        return rows

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

    def details(self) -> Row:
        """A round's gaps over time, for each engine: when (seconds), how long (ms)."""
        return {"gaps": {name: self._picture(name) for name in self.played}}

    def _picture(self, name: str) -> Row:
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
