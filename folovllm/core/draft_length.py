"""How many draft tokens a step has for each sequence: as many as pay in a batch of this size.

    tokens of a sequence in a step    1 + alpha + alpha^2 + ... + alpha^k      alpha: a verified one is right
    seconds of the step               step(b * (1 + k)) + k * draft(b) + host   b sequences

    b = 1    weights are read once, whatever the rows: 2 tokens cost hardly more than 1, and k is large
    b = 64   a row more costs a row's arithmetic, and each refused draft token was a row for nothing: k falls to 0

vLLM: v1/spec_decode/dynamic/
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

MEMORY = 0.995  # what a draft token still counts once another was verified: the last 200 decide
OPTIMISM = (6.0, 8.0)  # (right, verified) before the first draft token
WORTH = 1.05  # draft tokens must make a step so much quicker: to verify them costs time that is not measured
# Of 128 choices in a row that find no draft token worth while, the last 3 have one nevertheless: the draft may have
# become better. 3, since an engine that runs ahead has none after the first: that one makes it wait for its tokens.
PROBE_EVERY, PROBES = 128, 3


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens that a sequence gains by k drafts: draft token i counts if all before it are right, too."""
    return sum(alpha**i for i in range(k + 1))


@dataclass(slots=True)
class HostCosts:
    """Seconds of the host's work in a step: whatever it brings, and more for each token."""

    fixed: float = 0.0
    per_token: float = 0.0
    proposing: float = 0.0
    proposing_per_seq: float = 0.0
    """What a step with draft tokens costs more, and more for each sequence."""
    hidden: bool = False
    """The engine runs ahead: without draft tokens the host works while the device does."""


@dataclass(slots=True)
class StepCosts:
    """What was measured: a step of rows[i] tokens takes seconds[i], and drafting one token for each of rows[i]
    sequences draft_seconds[i]. `rows` rises. More rows never cost less: where they seemed to, that was noise."""

    rows: list[int]
    seconds: list[float]
    draft_seconds: list[float]
    host: HostCosts = field(default_factory=HostCosts)

    def __post_init__(self) -> None:
        self.seconds = list(accumulate(self.seconds, max))
        self.draft_seconds = list(accumulate(self.draft_seconds, max))

    def seconds_for(self, rows: float) -> float:
        return self._between(self.seconds, rows)

    def draft_seconds_for(self, num_seqs: int) -> float:
        return self._between(self.draft_seconds, num_seqs)

    def seconds_of_step(self, num_seqs: int, tokens: float, k: float) -> float:
        """All of a step with k draft tokens for each sequence, of which each gains so many tokens."""
        model, host = self.seconds_for(num_seqs * (k + 1)), self.host
        on_host = host.fixed + host.per_token * num_seqs * tokens
        if k == 0 and host.hidden:
            return max(model, on_host)
        proposing = host.proposing + host.proposing_per_seq * num_seqs if k else 0.0
        return model + k * self.draft_seconds_for(num_seqs) + on_host + proposing

    def _between(self, seconds: list[float], rows: float) -> float:
        """On the line through the two measured points around `rows`, or through the last two behind the last."""
        if len(self.rows) == 1 or rows <= self.rows[0]:
            return seconds[0]
        right = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        x0, x1, y0, y1 = self.rows[right - 1], self.rows[right], seconds[right - 1], seconds[right]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    """The k of 0 to `most` with the most tokens a second; 0 where none is WORTH it."""

    def rate(k: int) -> float:
        tokens = expected_tokens(alpha, k)
        return tokens / costs.seconds_of_step(num_seqs, tokens, k)

    best = max(range(most + 1), key=rate)
    return best if rate(best) >= WORTH * rate(0) else 0


class DraftLength:
    """Chooses k for each step, and learns from what came of it. costs None: `most`, always."""

    def __init__(self, most: int, costs: StepCosts | None) -> None:
        self.most, self.costs = most, costs
        self._right, self._verified = OPTIMISM
        self._named = self._asked = 1.0
        self._num_without = 0
        self._best: dict[tuple[int, int, int], int] = {}
        """What best_length() said, by sequences and by alpha and named in hundredths: it is asked in each step."""

    @property
    def alpha(self) -> float:
        """The share of right ones among the draft tokens that were verified lately."""
        return self._right / self._verified

    def choose(self, num_seqs: int) -> int:
        """For a step that decodes so many sequences, at least 1."""
        if self.costs is None:
            return self.most
        named = max(0.01, self._named / self._asked) if self.costs.host.hidden else 1.0  # else asking costs nothing
        key = num_seqs, round(self.alpha * 100), round(named * 100)
        if (best := self._best.get(key)) is None:
            best = best_length(num_seqs, key[1] / 100, self.most, self.costs)
            gained = 1 + named * (expected_tokens(key[1] / 100, best) - 1)
            plain = self.costs.seconds_of_step(num_seqs, 1, 0)
            asking = self.costs.seconds_of_step(num_seqs, gained, named * best)
            best = self._best[key] = best if gained * plain >= WORTH * asking else 0
        if best > 0:
            self._num_without = 0
            return best
        self._num_without = (self._num_without + 1) % PROBE_EVERY
        if self._num_without < PROBE_EVERY - PROBES:
            return 0
        return min(1, best_length(num_seqs, 1.0, self.most, self.costs))  # 0: not even perfect ones would pay

    def record(self, drafted: int, accepted: int) -> None:
        """One sequence's draft tokens of a step, perhaps none. Behind the first wrong one, none was verified."""
        self._asked = self._asked * MEMORY + 1
        self._named = self._named * MEMORY + (drafted > 0)
        verified = accepted + (accepted < drafted)
        fade = MEMORY**verified
        self._right = self._right * fade + accepted
        self._verified = self._verified * fade + verified
