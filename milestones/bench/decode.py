"""`--workload decode`: what a decode step takes, at several batch sizes, with every prompt computed before.

request 0   prefill ├─┬─┬─┬─┬─┬─┬─┬─┬─┬─
request 1     prefill ├─┬─┬─┬─┬─┬─┬─┬─┬─
request 2        prefill ├─┬─┬─┬─┬─┬─┬─┬─
                         └warm─┘└measured┘   steps in which every request gains a token
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from milestones.bench.charts import draw_bars
from milestones.bench.process import Worker
from milestones.bench.timeline import Played, Wave, agreement, check_agreement, draw_prompt, in_turn, play
from milestones.spec import MilestoneError

WARM_UP_STEPS = 4
COLUMNS = [
    "milestone", "batch", "context", "steps", "step_ms", "step_p90_ms", "output_tokens_per_s", "speedup", "same_tokens",
]  # fmt: skip


@dataclass
class DecodeWorkload:
    """Collects each round's step times by milestone and batch size."""

    batches: list[int]
    context: int
    steps: int
    dtype: str
    steps_s: dict[tuple[str, int], list[list[float]]] = field(default_factory=dict)
    shares: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    columns = COLUMNS

    @property
    def enough(self) -> int:
        return WARM_UP_STEPS + self.steps + 1

    @property
    def max_tokens(self) -> int:
        """The first requests decode while the prompts of the last ones are computed, a few hundred tokens a step."""
        return self.enough + 16 + max(self.batches) * self.context // 256

    @property
    def max_model_len(self) -> int:
        return self.context + self.max_tokens

    @property
    def num_seqs(self) -> int:
        return max(self.batches)

    @property
    def plays(self) -> int:
        """Of each milestone in a round."""
        return len(self.batches)

    def play_round(self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Callable[[str], None]) -> None:
        for batch in self.batches:
            prompts = [draw_prompt(f"{number} {batch} {i}", self.context, vocab_size) for i in range(batch)]
            played: dict[str, Played] = {}
            for worker in in_turn(workers, number):
                tick(f"batch {batch}: {worker.name}")
                waves = [Wave(prompts, [self.max_tokens] * batch)]
                played[worker.name] = play(worker, waves, self.enough)
            if number:
                for worker in workers:
                    self._take(worker.name, batch, played[worker.name], played[workers[0].name])

    def _take(self, name: str, batch: int, played: Played, reference: Played) -> None:
        gaps = steady_gaps(played.times)[WARM_UP_STEPS:]
        if len(gaps) < self.steps:
            raise MilestoneError(
                f"{name} did not decode {batch} sequences of {self.context} tokens together for {self.steps} steps: "
                "lower --batch or --context, or give it more room by --set"
            )
        share = agreement(played, reference)
        check_agreement(name, share, self.dtype)
        self.steps_s.setdefault((name, batch), []).append(gaps[: self.steps])
        self.shares.setdefault((name, batch), []).append(share)

    def rows(self) -> list[dict[str, Any]]:
        """Medians of all steps; `speedup` is the median over the rounds, each round's first milestone over this one."""
        first = next(iter(self.steps_s))[0]
        rows = []
        for name in dict.fromkeys(name for name, _ in self.steps_s):
            for batch in self.batches:
                rounds, base = self.steps_s[name, batch], self.steps_s[first, batch]
                seconds = sorted(gap for gaps in rounds for gap in gaps)
                step = statistics.median(seconds)
                ratios = [statistics.median(b) / statistics.median(g) for b, g in zip(base, rounds, strict=True)]
                rows.append(
                    {
                        "milestone": name,
                        "batch": batch,
                        "context": self.context,
                        "steps": len(seconds),
                        "step_ms": step * 1e3,
                        "step_p90_ms": seconds[int(0.9 * (len(seconds) - 1))] * 1e3,
                        "output_tokens_per_s": batch / step,
                        "speedup": statistics.median(ratios),
                        "same_tokens": min(self.shares[name, batch]),
                    }
                )
        return sorted(rows, key=lambda row: self.batches.index(row["batch"]))

    def notes(self) -> list[str]:
        return [
            f"Steps in which every sequence gains a token, each with {self.context} tokens at the start; prompts are "
            f"computed before, {WARM_UP_STEPS} steps warm up, {self.steps} of each round count.",
            "speedup: the first milestone's step over this one's, the median of the rounds' ratios.",
        ]

    def details(self) -> dict[str, Any]:
        return {}

    def draw(self, title: str) -> str:
        rows = self.rows()
        first = rows[0]["milestone"]
        bars = [
            (
                f"batch {row['batch']}, {row['milestone']}",
                row["output_tokens_per_s"],
                f"{row['output_tokens_per_s']:,.0f}"
                + (f"   ({row['speedup']:.2f} × {first})" if row["milestone"] != first else ""),
            )
            for row in rows
        ]
        return draw_bars(f"{title}: decoded tokens/s", bars)


def steady_gaps(times: list[list[float]]) -> list[float]:
    """What each step took while all requests were decoding: from the last one's first token to the first one's last.

    None at all when a request missed one of these steps.
    """
    start, end = max(came[0] for came in times), min(came[-1] for came in times)
    steps = [[moment for moment in came if start <= moment <= end] for came in times]
    if any(moments != steps[0] for moments in steps):
        return []
    return [later - earlier for earlier, later in pairwise(steps[0])]
