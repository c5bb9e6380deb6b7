"""The campaign itself: draws, plays and judges cases for a given time, and shows how far it has come."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from scipy import stats

from tests.campaign.case import Case, Tally, Wrong
from tests.campaign.drawing import draw_case
from tests.campaign.models import Models
from tests.campaign.play import examine
from tests.campaign.shrinking import Shrinker

# Of a hundred million campaigns over a right sampler, one would be called wrong.
LEAST_P = 1e-8


class Campaign:
    """seed: None draws one."""

    def __init__(self, minutes: float, seed: int | None, out: Path, shrink_seconds: float) -> None:
        self.seconds, self.out, self.shrink_seconds = minutes * 60, out, shrink_seconds
        self.seed = random.SystemRandom().randrange(10**6) if seed is None else seed
        self.console = Console()
        self.tally = Tally()

    def run(self) -> int:
        """The exit status: 1 where something was wrong."""
        torch.set_num_threads(1)  # the models are tiny
        self.console.print(f"seed {self.seed}: python -m tests.campaign --seed {self.seed} draws the same cases")
        with tempfile.TemporaryDirectory() as folder:
            models = Models(Path(folder))
            failing = self._until_wrong(models)
            if failing is not None:
                return self._tell(*failing, models)
        self._print()
        return self._check_draws()

    def _until_wrong(self, models: Models) -> tuple[Case, Wrong] | None:
        began, number = time.monotonic(), 0
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar = progress.add_task("", total=self.seconds)
            while (passed := time.monotonic() - began) < self.seconds:
                case = draw_case(self.seed, number)
                number += 1
                try:
                    self.tally.add(examine(case, models))
                except Wrong as wrong:
                    return case, wrong
                progress.update(bar, completed=passed, description=_in_short(self.tally))
        return None

    def _tell(self, case: Case, wrong: Wrong, models: Models) -> int:
        """Make it small, write it down, and say how to see it again."""
        self.console.print(f"[red]{wrong}[/red]", highlight=False)
        self.console.print(f"making the case of {len(case.requests)} requests smaller ...")
        shrinker = Shrinker(case, lambda candidate: examine(candidate, models), wrong.kind)
        small = shrinker.run(self.shrink_seconds)
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"case-{self.seed}-{self.tally.engines}.json"
        path.write_text(small.to_json(), encoding="utf-8")
        self.console.print(f"{len(small.requests)} requests are left after {shrinker.num_tried} tries")
        self.console.print(f"see it again: python -m tests.campaign --replay {path}", soft_wrap=True)
        self._print()
        return 1

    def _print(self) -> None:
        table = Table("what", "count", title="campaign")
        for name, count in _counts(self.tally).items():
            table.add_row(name, f"{count:,}")
        self.console.print(table)

    def _check_draws(self) -> int:
        """Unseeded draws, taken together: each fell somewhere in [0, 1), and all places are equally likely."""
        if len(self.tally.draws) < 100:
            return 0
        p = float(stats.kstest(self.tally.draws, "uniform").pvalue)
        self.console.print(f"{len(self.tally.draws):,} unseeded draws follow their distributions: p = {p:.2g}")
        return int(p < LEAST_P)


def replay(path: Path) -> int:
    """Play one case; 1 where it is wrong."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            tally = examine(Case.read(path), Models(Path(folder)))
        except Wrong as wrong:
            print(wrong)
            return 1
    print(f"nothing is wrong: {_in_short(tally)}")
    return 0


def _counts(tally: Tally) -> dict[str, int]:
    return {
        "engines": tally.engines,
        "requests": tally.requests,
        "refused, as they had to be": tally.refused,
        "aborted": tally.aborted,
        "failed by their own code": tally.failed,
        "steps": tally.steps,
        "preemptions": tally.preemptions,
        "prompt tokens found in a cache": tally.cached_tokens,
        "of these, behind the pool": tally.tier_tokens,
        "blocks read from a folder": tally.file_blocks,
        "restarts": tally.restarts,
        "tokens compared with the reference": tally.tokens,
        "tokens compared with Hugging Face": tally.hf_tokens,
        "vectors": tally.vectors,
        "answers by adapters": tally.voiced,
        "beams": tally.beams,
        "log-probabilities": tally.logprobs,
        "ties": tally.ties,
    }


def _in_short(tally: Tally) -> str:
    return (
        f"{tally.engines} engines, {tally.requests} requests, {tally.preemptions} preemptions, "
        f"{tally.tokens} tokens, {tally.ties} ties"
    )
