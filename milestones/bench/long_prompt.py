"""`--workload long-prompt`: requests that decode steadily, and a long prompt that arrives in their midst."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from folovllm.bench.workload import random_prompts
from milestones.bench.play import Played, Wave, play
from milestones.bench.worker_process import WorkerProcess
from milestones.bench.workloads import WARM_UP_TOKENS, Rounds, Row, Tick, Workload, in_turn, median_ms, ratios

STEADY_PROMPT = 32  # tokens of each of the steady requests' prompts, and of the short ones behind the long one


@dataclass
class LongPrompt(Workload):
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
    shorts: int = 0
    swept_field: str = ""
    swept: dict[str, int | None] | None = None

    title, plays = "A long prompt among decodes", 2  # one to warm up, one that counts

    def __post_init__(self) -> None:
        # The long prompt comes when a quarter of the steady requests' tokens are there, and has as many outputs.
        self.quarter = max(1, self.new_tokens // 4)
        self.max_model_len = max(self.long_len, STEADY_PROMPT) + self.new_tokens
        self.num_seqs = self.decodes + 1 + self.shorts
        self.columns = (
            "milestone", *([self.swept_field] if self.swept else []), "decodes", "prompt_tokens", "output_tokens",
            "gap_p50_ms", "worst_gap_ms", "worst_gap_ratio", "ttft_ms",
            *(["shorts", "short_ttft_ms"] if self.shorts else []), "seconds", "output_tokens_per_s",
            "throughput_ratio", "same_tokens",
        )  # fmt: skip

    def play_round(self, workers: Sequence[WorkerProcess], number: int, vocab_size: int, tick: Tick) -> None:
        if number == 0:  # each round warms itself up
            return
        found = {worker.name: list[Played]() for worker in workers}
        for worker in in_turn(workers, number):
            tick(f"warm-up: {worker.name}")
            play(worker, self._waves(f"warm-up {number}", vocab_size, min(self.new_tokens, WARM_UP_TOKENS), 1))
            tick(f"{self.decodes} decodes and a prompt: {worker.name}")
            found[worker.name].append(play(worker, self._waves(str(number), vocab_size, self.new_tokens, self.quarter)))
        self.keep(None, found)

    def _waves(self, seed: str, vocab_size: int, new_tokens: int, after: int) -> list[Wave]:
        behind = [self.long_len, *[STEADY_PROMPT] * self.shorts]
        prompts = random_prompts([STEADY_PROMPT] * self.decodes + behind, vocab_size, seed)
        steady = Wave(prompts[: self.decodes], [new_tokens] * self.decodes)
        return [steady, Wave(prompts[self.decodes :], [after] * len(behind), after=after)]

    def row(self, kind: Any, name: str, rounds: Rounds, base: Rounds) -> Row:
        """Medians over the rounds; the ratios are medians of the rounds' ratios."""
        mine, first = ([played for (played,) in each] for each in (rounds, base))
        worst, tokens = list(map(self._worst, mine)), sum(map(len, mine[0].tokens))
        seconds = [played.seconds for played in mine]
        row: Row = {"milestone": self.names[name], "decodes": self.decodes, "prompt_tokens": self.long_len}
        row |= {self.swept_field: (self.swept or {}).get(name), "shorts": self.shorts, "output_tokens": tokens}
        gaps = ([gap for _, gap in steady_gaps(played, self.decodes)] for played in mine)
        row |= {"gap_p50_ms": median_ms(map(statistics.median, gaps)), "worst_gap_ms": median_ms(worst)}
        row |= {"worst_gap_ratio": ratios(map(self._worst, first), worst)}
        row |= {"ttft_ms": median_ms(played.ttft[self.decodes] for played in mine)}
        shorts = (max(played.ttft[self.decodes + 1 :], default=0.0) for played in mine)
        row |= {"short_ttft_ms": median_ms(shorts), "seconds": statistics.median(seconds)}
        row |= {"output_tokens_per_s": tokens / row["seconds"]}
        return row | {"throughput_ratio": ratios((played.seconds for played in first), seconds)}

    def _worst(self, played: Played) -> float:
        return max(gap for _, gap in steady_gaps(played, self.decodes))

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

    def picture(self, name: str) -> Row:
        """The gaps over time, of the round whose worst gap is the median (the lower of two): when (seconds), how long
        (ms)."""
        rounds = sorted((played for (played,) in self.played[None, name]), key=self._worst)
        played = rounds[(len(rounds) - 1) // 2]
        points: dict[float, float] = {}
        for moment, gap in steady_gaps(played, self.decodes):
            points[moment] = max(gap, points.get(moment, 0.0))
        return {
            "arrival_s": round(played.arrivals[self.decodes], 6),
            "first_token_s": round(played.times[self.decodes][0], 6),
            "points": [[round(moment, 6), round(gap * 1e3, 4)] for moment, gap in sorted(points.items())],
        }


def steady_gaps(played: Played, decodes: int) -> list[tuple[float, float]]:
    """(when it ended, how long it was) for each gap of the first `decodes` requests after all of them have begun."""
    begun = max(times[0] for times in played.times[:decodes])
    return [
        (later, later - earlier)
        for times in played.times[:decodes]
        for earlier, later in pairwise(times)
        if earlier >= begun
    ]
