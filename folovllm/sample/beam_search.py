"""Beam search: which continuations of the live beams go on, which have ended, and when to stop looking.

A greedy choice cannot be taken back: one step later another first token may turn out better. So `width` partial
outputs ("beams") are kept alive, all of the same length; each step ranks ALL their continuations together. Here
width 2, the tokens a, b and "." (EOS); the figures are probabilities, a score is the log of their product:

    step 1                        step 2                    rank
    prompt ─┬─ a  .50  lives ───┬─ aa  .50 * .40 = .200      2    lives on
            │                   ├─ ab  .50 * .35 = .175      3    lives on: the second that has not ended
            │                   └─ a.  .50 * .25 = .125      4    EOS, but not among the best 2: forgotten
            ├─ b  .40  lives ───┬─ b.  .40 * .70 = .280      1    EOS among the best 2: goes to the pool
            │                   ├─ bb  .40 * .20 = .080      5    forgotten
            │                   └─ ba  .40 * .10 = .040      6    forgotten
            └─ .  .10  forgotten

Greedily "a" would have won. Both survivors come from it: its KV blocks get shared, those of "b" come back.
Every token lowers a score, so ended outputs are compared by score / length ** length_penalty. The penalty also decides
whether a live beam could still beat the pool's worst, but it never changes how live beams are ranked. Above,
"b." enters the pool with log .28 / 2 ** 1 = -0.64. The pool holds the best `width` ended outputs.

vLLM: entrypoints/generate/beam_search/
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Literal

# One live beam's likeliest next tokens and their log-probabilities, of the same length.
CandidateRow = tuple[list[int], list[float]]

# In place of a divisor that float32 rounds to 0, as 10 ** -50 is.
_SMALLEST_DIVISOR = 2.0**-126


@dataclass(slots=True, frozen=True)
class Survivor:
    """A live beam after a step: row `parent` of that step, with one more token."""

    parent: int
    token_id: int
    score: float  # the sum of its tokens' log-probabilities


@dataclass(slots=True, eq=False)
class Hypothesis:
    """An output that has ended. The same object comes back from `best`, so it can be recognised by identity."""

    token_ids: list[int]  # output only, with the EOS that ended it
    score: float
    normalised_score: float  # score / length ** length_penalty: what hypotheses are compared by
    stop_token_id: int | None  # the EOS that ended it; None: max_new_tokens did (or masks that left no token)


@dataclass(slots=True, frozen=True)
class Ending:
    """A hypothesis that a step made out of its row `parent`; `kept` if it is in the pool after the step."""

    parent: int
    hypothesis: Hypothesis
    kept: bool


@dataclass(slots=True, frozen=True)
class BeamStep:
    """What a step decided. Row i of the next step belongs to survivors[i]. A beam with no survivor is freed."""

    survivors: list[Survivor]  # best first; empty when the search is over
    endings: list[Ending]

    @property
    def done(self) -> bool:
        return not self.survivors


@dataclass(slots=True, frozen=True)
class _Beam:
    token_ids: list[int]
    score: float


class BeamSearch:
    """The search for one prompt. `live` and `pool` are for reading, `advance` is the only way to change them.

    When it is over depends on `early_stopping`, in each case once the pool is full:
        True     at once
        False    when the best live beam, if it ended as it is, would not beat the pool's worst
        "never"  the same, but with length_penalty > 0 (longer divides more) the beam counts as if it reached
                 `max_new_tokens` without losing any score
    and always when `max_new_tokens` are made.
    """

    def __init__(
        self,
        width: int,
        eos_token_ids: frozenset[int],
        max_new_tokens: int,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
    ) -> None:
        self.width = width
        self.eos_token_ids = eos_token_ids
        self.max_new_tokens = max_new_tokens
        # As a float: an int to the power of a large int would be computed to its last digit.
        self.length_penalty = float(length_penalty)
        self.early_stopping = early_stopping
        # The prompt alone is one beam. `width` equal ones would fill the first step's ranks with copies.
        self.live: list[_Beam] = [_Beam([], 0.0)]
        self.pool: list[Hypothesis] = []  # best first

    @property
    def done(self) -> bool:
        return not self.live

    def advance(self, rows: list[CandidateRow]) -> BeamStep:
        """One step: rows[i] belongs to the i-th live beam; the first call has one row, the prompt's. A row has its
        `width` + number of EOS ids best tokens, or more: it can give all survivors, and an EOS may be before each.

        A candidate at -inf (masked) or NaN does not count: there are fewer than `width` beams rather than beams with
        forbidden tokens. A beam left without candidates is dropped; if all are, the search is over.
        """
        length = self._live_length() + 1
        survivors: list[Survivor] = []
        ended: list[tuple[int, Hypothesis]] = []
        for rank, (score, parent, token_id) in enumerate(self._ranked(rows)):
            is_eos = token_id in self.eos_token_ids
            if not is_eos and length < self.max_new_tokens:
                survivors.append(Survivor(parent, token_id, score))
                if len(survivors) == self.width:
                    break
            # Ranks from `width` on only replace beams that end. A continuation of such a rank enters no pool.
            elif rank < self.width:
                ended.append((parent, self._end(parent, score, token_id, is_eos)))
        if not survivors and not ended and not self.pool:
            ended = self._end_stuck_beams()
        self.pool += [hypothesis for _, hypothesis in ended]
        self.pool.sort(key=lambda hypothesis: -hypothesis.normalised_score)  # stable: of equals the older one stays
        del self.pool[self.width :]
        if survivors and self._is_over(survivors[0].score, length):
            survivors = []
        self.live = [_Beam([*self.live[s.parent].token_ids, s.token_id], s.score) for s in survivors]
        return BeamStep(survivors, [Ending(parent, h, kept=h in self.pool) for parent, h in ended])

    def best(self, n: int) -> list[Hypothesis]:
        """The n best that have ended so far, best first. Fewer only where there are no more."""
        return self.pool[:n]

    def _live_length(self) -> int:
        if self.done:
            raise ValueError("the search is over: no live beam is left to advance")
        return len(self.live[0].token_ids)

    def _ranked(self, rows: list[CandidateRow]) -> list[tuple[float, int, int]]:
        """(score, parent, token) of every possible continuation, best first; of equals the first given.

        Sums are rounded to float32 at each step, as Hugging Face's tensors are: where sums in float64 would
        differ in a digit that float32 has not, the two could keep different beams.
        """
        ranked = []
        for parent, (beam, (token_ids, logprobs)) in enumerate(zip(self.live, rows, strict=True)):
            scores = array("f", [beam.score + logprob for logprob in logprobs])
            ranked += [
                (score, parent, token_id)
                for score, token_id in zip(scores, token_ids, strict=True)
                if score > -math.inf  # false for NaN as well
            ]
        ranked.sort(key=lambda candidate: candidate[0], reverse=True)
        return ranked

    def _end(self, parent: int, score: float, token_id: int, is_eos: bool) -> Hypothesis:
        token_ids = [*self.live[parent].token_ids, token_id]
        normalised = self._normalise(score, len(token_ids))
        return Hypothesis(token_ids, score, normalised, stop_token_id=token_id if is_eos else None)

    def _end_stuck_beams(self) -> list[tuple[int, Hypothesis]]:
        """The masks leave no token at all and no output has ended: what the beams have so far are the outputs."""
        return [
            (parent, Hypothesis(beam.token_ids, beam.score, self._normalise(beam.score, len(beam.token_ids)), None))
            for parent, beam in enumerate(self.live)
        ]

    def _normalise(self, score: float, length: int) -> float:
        """score / length ** length_penalty in float32; a length counts the EOS, but never the prompt."""
        try:
            divisor = _float32(max(length, 1) ** self.length_penalty)
        except OverflowError:
            divisor = math.inf
        return _float32(score / max(divisor, _SMALLEST_DIVISOR))

    def _is_over(self, best_live_score: float, length: int) -> bool:
        """Whether to stop although beams are live; `length` is the length of all of them."""
        if len(self.pool) < self.width:
            return False
        if self.early_stopping is True:
            return True
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.max_new_tokens
        return self._normalise(best_live_score, length) <= self.pool[-1].normalised_score


def _float32(value: float) -> float:
    return array("f", [value])[0]
