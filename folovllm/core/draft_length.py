"""How many draft tokens a step has for each sequence: as many as pay in a batch of this size.

    tokens of a sequence in a step    1 + alpha + alpha^2 + ... + alpha^k      alpha: a verified one is right
    time of the step                  step(b * (1 + k)) + k * draft(b)         b sequences

    b = 1    weights are read once, whatever the rows: 2 tokens cost hardly more than 1, and k is large
    b = 64   a row more costs a row's arithmetic, and each refused draft token was a row for nothing: k falls to 0

Nothing is measured but alpha. The times are in steps that read the weights once, and the device says how many rows are
computed meanwhile.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023, section 3.4.

vLLM: v1/spec_decode/dynamic/
"""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 0.98  # what a draft token still counts once another was verified: the last 50 decide
OPTIMISM = (6.0, 8.0)  # (right, verified) before the first draft token
WORTH = 1.05  # draft tokens must make a step so much quicker: to verify them costs time that is not in StepCosts
# Of 128 choices in a row that find no draft token worth while, the last 3 have one nevertheless: the draft may have
# become better. 3, since an engine that runs ahead has none after the first: that one makes it wait for its tokens.
PROBE_EVERY, PROBES = 128, 3


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What parts of a step cost. Reading the model's weights once is 1."""

    ridge: float
    """Rows whose arithmetic takes as long as that: the ridge point of a roofline."""
    draft: float = 0.0
    """A draft token of one sequence."""
    waiting: float = 0.0
    """An engine that would run ahead waits until the host knows which draft tokens were right."""

    def of_step(self, num_seqs: int, k: float) -> float:
        """All of a step with k draft tokens for each sequence. The draft has a row for each of them, too."""
        rows = 1 + num_seqs * (1 + k) / self.ridge
        return rows + k * self.draft * (1 + num_seqs / self.ridge) + (self.waiting if k else 0.0)


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens that a sequence gains by k drafts: draft token i counts if all before it are right, too."""
    return sum(alpha**i for i in range(k + 1))


def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    """The k of 0 to `most` with the most tokens in a time; 0 where none is WORTH it."""

    def rate(k: int) -> float:
        return expected_tokens(alpha, k) / costs.of_step(num_seqs, k)

    best = max(range(most + 1), key=rate)
    return best if rate(best) >= WORTH * rate(0) else 0


class DraftLength:
    """Chooses k for each step, and learns from what came of it. costs None: `most`, always."""

    def __init__(self, most: int, costs: StepCosts | None) -> None:
        self.most, self.costs = most, costs
        self._right, self._verified = OPTIMISM
        self._num_without = 0

    @property
    def alpha(self) -> float:
        """The share of right ones among the draft tokens that were verified lately."""
        return self._right / self._verified

    def choose(self, num_seqs: int) -> int:
        """For a step that decodes so many sequences, at least 1."""
        if self.costs is None:
            return self.most
        if best := best_length(num_seqs, self.alpha, self.most, self.costs):
            self._num_without = 0
            return best
        self._num_without = (self._num_without + 1) % PROBE_EVERY
        if self._num_without < PROBE_EVERY - PROBES:
            return 0
        return min(1, best_length(num_seqs, 1.0, self.most, self.costs))  # 0: not even perfect ones would pay

    def record(self, drafted: int, accepted: int) -> None:
        """One sequence's draft tokens of a step, perhaps none. Behind the first wrong one, none was verified."""
        verified = accepted + (accepted < drafted)
        if drafted == 0 and self.costs is not None and self.costs.waiting:
            verified = 1  # the step waited for nothing: as bad as a wrong one
        fade = MEMORY**verified
        self._right = self._right * fade + accepted
        self._verified = self._verified * fade + verified
