"""Shared by M8's tests: a proposer that knows what comes, and is wrong now and then."""

from __future__ import annotations

import random
from typing import Any

from folovllm import LLMEngine
from folovllm.request import Sequence
from folovllm.worker.proposer import Proposer
from tests.m6.support import caching_engine

Key = tuple[tuple[int, ...], int]
"""A prompt, and which of the request's sequences."""


class Prophet(Proposer):
    """Names what each sequence will say, with a wrong token among four, drawn by a seed."""

    def __init__(self, answers: dict[Key, list[int]], wrong: float = 0.25, seed: int = 0) -> None:
        self.answers, self.wrong, self.rng = answers, wrong, random.Random(seed)
        self.forgotten: list[str] = []

    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        return [self._guess(seq, count) for seq, count in zip(seqs, counts, strict=True)]

    def _guess(self, seq: Sequence, count: int) -> list[int]:
        said = seq.get_output_len()
        comes = self.answers.get((tuple(seq.data.prompt_token_ids), seq.index), [])[said : said + count]
        return [token ^ 1 if self.rng.random() < self.wrong else token for token in comes]

    def forget(self, seq_id: str) -> None:
        self.forgotten.append(seq_id)


def guess_always(engine: LLMEngine, proposer: Any = None) -> LLMEngine:
    """As many guesses as there is room for, whatever a step costs on this machine."""
    assert engine.scheduler.drafts.length is not None
    engine.scheduler.drafts.length.costs = None
    if proposer is not None:
        assert engine.runner.speculation is not None
        engine.runner.speculation.proposer = proposer
    return engine


def guessing_engine(folder: Any, answers: dict[Key, list[int]], k: int = 4, **kwargs: Any) -> LLMEngine:
    """caching_engine() whose sequences get up to k guesses, most of them right."""
    engine = caching_engine(folder, speculative_config={"method": "ngram", "num_speculative_tokens": k}, **kwargs)
    return guess_always(engine, Prophet(answers))
