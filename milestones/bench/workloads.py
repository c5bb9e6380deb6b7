"""What is played to the milestones, and how rows are made of what came back. Round 0 warms up.

requests        all there at the start: tokens/s, and what the KV cache holds
decode          every prompt computed before: the time of a step at several batch sizes
long-prompt     requests decode steadily, and a long prompt arrives in their midst: the worst gap, the TTFT
shared-prefix   one request after another whose prompts begin alike, and the same with nothing alike
"""

from __future__ import annotations

import random
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from folovllm.bench.workload import random_prompts
from milestones.bench.play import LEAST_AGREEMENT, Played, Wave, agreement, check_agreement, play
from milestones.bench.worker_process import WorkerProcess
from milestones.spec import MilestoneError

Row = dict[str, Any]
Tick = Callable[[str], None]
Rounds = list[list[Played]]
WARM_UP_TOKENS, WARM_UP_STEPS = 4, 4


@dataclass(frozen=True)
class Lengths:
    """Tokens of each request's prompt and output: the same in every round and for every contestant."""

    prompts: list[int]
    outputs: list[int]

    @classmethod
    def uniform(cls, count: int, prompt: tuple[int, int], output: tuple[int, int], seed: int = 0) -> Lengths:
        """Drawn between the two ends, both included. Raises ValueError: no request, or no 1 <= MIN <= MAX."""
        if count < 1:
            raise ValueError(f"requests must be at least 1, got {count}")
        for name, (low, high) in (("prompt-len", prompt), ("output-len", output)):
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be two numbers, 1 <= MIN <= MAX, got {low} and {high}")
        rng = random.Random(seed)
        pairs = [(rng.randint(*prompt), rng.randint(*output)) for _ in range(count)]
        return cls([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    @property
    def longest(self) -> int:
        """The longest request: what max_model_len must at least be."""
        return max(prompt + output for prompt, output in zip(self.prompts, self.outputs, strict=True))

    def describe(self) -> str:
        prompts, outputs = (
            f"{min(values)} to {max(values)} tokens (mean {statistics.mean(values):.1f})"
            for values in (self.prompts, self.outputs)
        )
        return f"{len(self.prompts)} requests at once: prompts of {prompts}, outputs of {outputs}"


@dataclass
class Workload(ABC):
    """One kind of measurement, and what its rounds have brought so far, by kind and engine."""

    dtype: str
    played: dict[tuple[Any, str], Rounds] = field(default_factory=dict, init=False)
    shares: dict[tuple[Any, str], list[float]] = field(default_factory=dict, init=False)
    """Of tokens that are the first engine's, in each round."""

    title = ""
    columns = tuple[str, ...]()
    max_model_len = num_seqs = 0
    plays = 1
    """Of each engine in a round."""
    least_agreement = LEAST_AGREEMENT

    @abstractmethod
    def play_round(self, workers: Sequence[WorkerProcess], number: int, vocab_size: int, tick: Tick) -> None: ...

    @abstractmethod
    def row(self, kind: Any, name: str, rounds: Rounds, base: Rounds) -> Row:
        """`base`: the first engine's rounds."""

    @abstractmethod
    def notes(self) -> list[str]: ...

    def rows(self) -> list[Row]:
        first = next(iter(self.played))[1]
        rows = []
        for (kind, name), rounds in self.played.items():
            row = {"milestone": name, "same_tokens": min(self.shares[kind, name])}
            row |= self.row(kind, name, rounds, self.played[kind, first])
            rows.append({column: row[column] for column in self.columns})
        return rows

    def keep(self, kind: Any, found: dict[str, list[Played]]) -> None:
        """A round of each engine. Raises MilestoneError: one gives other tokens than the first."""
        reference = next(iter(found.values()))
        for name, mine in found.items():
            share = statistics.mean(agreement(one, other) for one, other in zip(mine, reference, strict=True))
            check_agreement(name, share, self.dtype, self.least_agreement)
            self.played.setdefault((kind, name), []).append(mine)
            self.shares.setdefault((kind, name), []).append(share)


def in_turn(workers: Sequence[WorkerProcess], number: int) -> list[WorkerProcess]:
    """Who goes first goes last the next time: what warms up or cools down then favours nobody."""
    return list(workers) if number % 2 else list(reversed(workers))


def ratios(base: Iterable[float], mine: Iterable[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(base, mine, strict=True))


def median_ms(seconds: Iterable[float]) -> float:
    return statistics.median(seconds) * 1e3


@dataclass
class Requests(Workload):
    lengths: Lengths
    max_model_len: int

    title, least_agreement = "Milestones", 1.0
    columns = (
        "milestone", "requests", "prompt_tokens", "output_tokens", "seconds", "output_tokens_per_s", "speedup",
        "mean_ttft_ms", "running_seqs", "kv_reserved_tokens", "kv_used_tokens",
    )  # fmt: skip

    def play_round(self, workers: Sequence[WorkerProcess], number: int, vocab_size: int, tick: Tick) -> None:
        outputs = self.lengths.outputs if number else [min(n, WARM_UP_TOKENS) for n in self.lengths.outputs]
        waves = [Wave(random_prompts(self.lengths.prompts, vocab_size, number), outputs)]
        found = {}
        for worker in workers:
            tick(worker.name)
            found[worker.name] = [play(worker, waves)]
        if number:
            self.keep(None, found)

    def row(self, kind: Any, name: str, rounds: Rounds, base: Rounds) -> Row:
        seconds, first = (statistics.median(played.seconds for (played,) in each) for each in (rounds, base))
        tokens = sum(self.lengths.outputs)
        row: Row = {"requests": len(self.lengths.prompts), "prompt_tokens": sum(self.lengths.prompts)}
        row |= {"output_tokens": tokens, "seconds": seconds, "output_tokens_per_s": tokens / seconds}
        row |= {"speedup": first / seconds, "mean_ttft_ms": median_ms(statistics.mean(p.ttft) for (p,) in rounds)}
        for key in self.columns[-3:]:  # None for a milestone that keeps no statistics
            values = [played.peak[key] for (played,) in rounds if key in played.peak]
            row[key] = round(statistics.median(values)) if values else None
        return row

    def notes(self) -> list[str]:
        return [
            f"{self.lengths.describe()}; lengths uniform. All milestones gave the same tokens in every round.",
            "running_seqs: the most at once. kv: the cache's tokens when most of them were used; – where the milestone "
            "keeps no statistics.",
        ]


@dataclass
class Decode(Workload):
    """request 0   prefill ├─┬─┬─┬─┬─┬─┬─┬─┬─┬─
    request 1     prefill ├─┬─┬─┬─┬─┬─┬─┬─┬─
                            └warm─┘└measured┘   steps in which every request gains a token"""

    batches: list[int]
    context: int
    steps: int

    title = "Decode steps"
    columns = (
        "milestone", "batch", "context", "steps", "step_ms", "step_p90_ms", "output_tokens_per_s", "speedup",
        "same_tokens",
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.enough, self.num_seqs, self.plays = WARM_UP_STEPS + self.steps + 1, max(self.batches), len(self.batches)
        # The first requests decode while the prompts of the last ones are computed, a few hundred tokens a step.
        self.max_tokens = self.enough + 16 + self.num_seqs * self.context // 256
        self.max_model_len = self.context + self.max_tokens

    def play_round(self, workers: Sequence[WorkerProcess], number: int, vocab_size: int, tick: Tick) -> None:
        for batch in self.batches:
            prompts = random_prompts([self.context] * batch, vocab_size, f"{number} {batch}")
            found = {worker.name: list[Played]() for worker in workers}
            for worker in in_turn(workers, number):
                tick(f"batch {batch}: {worker.name}")
                played = play(worker, [Wave(prompts, [self.max_tokens] * batch)], self.enough)
                found[worker.name].append(played)
                if number and len(self._gaps(played)) < self.steps:
                    raise MilestoneError(
                        f"{worker.name} did not decode {batch} sequences of {self.context} tokens together for "
                        f"{self.steps} steps: lower --batch or --context"
                    )
            if number:
                self.keep(batch, found)

    def _gaps(self, played: Played) -> list[float]:
        return steady_steps(played.times)[WARM_UP_STEPS:][: self.steps]

    def row(self, kind: Any, name: str, rounds: Rounds, base: Rounds) -> Row:
        """Medians of all steps; `speedup` is the median over the rounds, each round's first milestone over this one."""
        mine, theirs = ([self._gaps(played) for (played,) in each] for each in (rounds, base))
        seconds = sorted(gap for gaps in mine for gap in gaps)
        step = statistics.median(seconds)
        row: Row = {"batch": kind, "context": self.context, "steps": len(seconds), "step_ms": step * 1e3}
        row |= {"step_p90_ms": seconds[int(0.9 * (len(seconds) - 1))] * 1e3, "output_tokens_per_s": kind / step}
        return row | {"speedup": ratios(map(statistics.median, theirs), map(statistics.median, mine))}

    def notes(self) -> list[str]:
        return [
            f"Steps in which every sequence gains a token, each with {self.context} tokens at the start; prompts are "
            f"computed before, {WARM_UP_STEPS} steps warm up, {self.steps} of each round count.",
            "speedup: the first milestone's step over this one's, the median of the rounds' ratios.",
        ]


@dataclass
class SharedPrefix(Workload):
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

    title, num_seqs, kinds = "Prompts that begin alike", 1, ("shared", "different")
    columns = (
        "milestone", "prompts", "requests", "prompt_tokens", "shared_tokens", "output_tokens", "cold_ttft_ms",
        "ttft_ms", "ttft_ratio", "seconds", "seconds_ratio", "cached_tokens", "same_tokens",
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.max_model_len, self.plays = self.prefix + self.suffix + self.new_tokens, len(self.kinds) * self.requests

    def play_round(self, workers: Sequence[WorkerProcess], number: int, vocab_size: int, tick: Tick) -> None:
        """Prompts are fresh in each round: nobody has seen this round's prefix before its first request."""
        for kind in self.kinds:
            found = {worker.name: list[Played]() for worker in workers}
            for place in range(self.requests):
                seed = f"{kind} {number}"
                (prefix,) = random_prompts([self.prefix], vocab_size, seed if kind == "shared" else f"{seed} {place}")
                (suffix,) = random_prompts([self.suffix], vocab_size, f"{seed} {place} suffix")
                for worker in in_turn(workers, place + number):
                    tick(f"{kind} prompt {place + 1}: {worker.name}")
                    found[worker.name].append(play(worker, [Wave([prefix + suffix], [self.new_tokens])]))
            if number:
                self.keep(kind, found)

    def row(self, kind: Any, name: str, rounds: Rounds, base: Rounds) -> Row:
        """Medians over requests and rounds; a ratio compares the same request of two milestones, and is the median of
        all these. The first request of a round is left out where prompts are shared: it is the cold one."""
        skip = int(kind == "shared")
        mine, theirs = ([one for each in of for one in each[skip:]] for of in (rounds, base))
        cached = [one.cached[0] for one in mine if one.cached[0] is not None]
        row: Row = {"prompts": kind, "requests": self.requests, "prompt_tokens": self.prefix + self.suffix}
        row |= {"shared_tokens": self.prefix if skip else 0, "output_tokens": self.new_tokens}
        row["cold_ttft_ms"] = median_ms(each[0].ttft[0] for each in rounds) if skip else None
        row["ttft_ms"] = median_ms(one.ttft[0] for one in mine)
        row["ttft_ratio"] = ratios((one.ttft[0] for one in theirs), (one.ttft[0] for one in mine))
        row["seconds"] = statistics.median(sum(one.seconds for one in each) for each in rounds)
        row["seconds_ratio"] = ratios((one.seconds for one in mine), (one.seconds for one in theirs))
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


def steady_steps(times: list[list[float]]) -> list[float]:
    """What each step took while all requests were decoding: from the last one's first token to the first one's last.

    None at all when a request missed one of these steps.
    """
    start, end = max(came[0] for came in times), min(came[-1] for came in times)
    steps = [[moment for moment in came if start <= moment <= end] for came in times]
    if any(moments != steps[0] for moments in steps):
        return []
    return [later - earlier for earlier, later in pairwise(steps[0])]
