"""Beam search in the plainest way: every continuation of every live beam is scored, in float64, and sorted.

The rules are Hugging Face's. Penalties and masks edit log-probabilities, and nothing is normalised again after them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from folovllm import SamplingParams
from tests.campaign.case import Asked
from tests.campaign.reference import Reference, log_softmax


@dataclass
class Beam:
    token_ids: list[int]
    score: float
    rated: float = 0.0  # score / length ** length_penalty
    ended_by: int | None = None


class BeamReference:
    """The search for one request. `margin` is the least by which anything was decided, the experts too: where it is
    tiny, float32 may decide otherwise."""

    def __init__(self, reference: Reference, asked: Asked) -> None:
        self.reference, self.asked = reference, asked
        self.params = params = asked.sampling_params()
        self.width = params.best_of or params.n
        self.ends = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else reference.model.spec.eos)}
        room = reference.longest - len(asked.prompt)
        self.max_new_tokens = min(params.max_tokens or room, room)
        self.margin = math.inf
        self.live, self.pool = [Beam([], 0.0)], list[Beam]()

    def run(self) -> list[Beam]:
        """The n best, best first."""
        while self.live:
            self._step()
        return self.pool[: self.params.n]

    def _step(self) -> None:
        ranked = self._ranked()
        length = len(self.live[0].token_ids) + 1
        going_on, ended = list[Beam](), list[Beam]()
        for rank, beam in enumerate(ranked):
            if rank > 0:
                self._decide(ranked[rank - 1].score, beam.score)
            is_end = beam.token_ids[-1] in self.ends
            if len(going_on) == self.width:
                break
            if not is_end and length < self.max_new_tokens:
                going_on.append(beam)
            elif rank < self.width:
                beam.ended_by = beam.token_ids[-1] if is_end else None
                ended.append(self._rate(beam))
        if not going_on and not ended and not self.pool:  # masks leave nothing to say
            ended = [self._rate(beam) for beam in self.live]
        self.pool = sorted(self.pool + ended, key=lambda beam: -beam.rated)
        for better, worse in pairwise(self.pool):
            self._decide(better.rated, worse.rated)
        del self.pool[self.width :]
        self.live = [] if going_on and self._is_over(going_on[0].score, length) else going_on

    def _ranked(self) -> list[Beam]:
        found = []
        for beam in self.live:
            row = log_softmax(self.reference.model.after(self.asked.prompt + beam.token_ids))
            if self.reference.is_torn(self.asked, beam.token_ids):
                self.margin = 0.0
            row = self.reference.edit(row, self.asked.prompt, beam.token_ids, self.params)
            likeliest = (-row).argsort(kind="stable")[: self.width + len(self.ends) + 1]
            found += [Beam([*beam.token_ids, int(t)], beam.score + row[t]) for t in likeliest if row[t] > -math.inf]
        return sorted(found, key=lambda beam: -beam.score)

    def _rate(self, beam: Beam) -> Beam:
        beam.rated = beam.score / max(len(beam.token_ids), 1) ** self.params.length_penalty
        return beam

    def _is_over(self, best: float, length: int) -> bool:
        params = self.params
        if len(self.pool) < self.width:
            return False
        if params.early_stopping is True:
            return True
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self.max_new_tokens
        hope = best / length**params.length_penalty
        self._decide(hope, self.pool[-1].rated)
        return hope <= self.pool[-1].rated

    def _decide(self, a: float, b: float) -> None:
        self.margin = min(self.margin, abs(a - b))


def is_plain(params: SamplingParams) -> bool:
    """Whether Hugging Face's search is asked the same question without further ado."""
    edits = (params.logit_bias, params.allowed_token_ids, params.bad_words, params.extra_args, params.min_tokens)
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return not any(edits) and penalties == (1.0, 0.0, 0.0) and not params.stop
