"""Prompt lookup: the last tokens have occurred before, so what followed them then may follow now.

    … the  cat  sat  on  the  mat  .  the  cat          the last two occurred at the beginning: draft  sat on the mat
      └───────┘                       └───────┘

It costs no model and no memory. It is often right where a text repeats itself or its prompt: code that is edited,
answers that quote. Where nothing was said before, it proposes nothing.

Saxena, "Prompt Lookup Decoding", 2023 (github.com/apoorvumang/prompt-lookup-decoding).

vLLM: v1/spec_decode/ngram_proposer.py
"""

from __future__ import annotations

import numpy as np

from folovllm.request import Sequence
from folovllm.spec_decode.draft_model import tokens_between
from folovllm.worker.proposer import Proposer


def find_continuation(token_ids: list[int] | np.ndarray, shortest: int, longest: int, count: int) -> list[int]:
    """What followed the last tokens when they occurred before, at most `count` tokens.

    The most of them that occurred before count, `longest` at most; fewer than `shortest` say nothing. Of several
    occurrences it is the latest, for the text may have changed its subject.
    """
    tokens = np.asarray(token_ids, np.int64)  # 32,000: a search in Python took ten times as long
    ends = np.flatnonzero(tokens[:-1] == tokens[-1:]) + 1  # of earlier occurrences of the last token, then of more
    found: list[int] = []
    for size in range(1, min(longest, len(tokens) - 1) + 1):
        ends = ends[ends >= size]
        ends = ends[tokens[ends - size] == tokens[-size]]
        if size >= shortest and len(ends) > 0:
            found = tokens[ends[-1] : ends[-1] + count].tolist()
    return found


class NgramProposer(Proposer):
    """Keeps each sequence's tokens in an array, with room for more: to make one of a list takes longer than a search,
    180 us of 4,096 tokens."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self._held: dict[str, tuple[np.ndarray, int]] = {}
        """By sequence id: the array, and how many tokens are in it."""

    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        return [
            find_continuation(self._tokens_of(seq), self.shortest, self.longest, count)
            for seq, count in zip(seqs, counts, strict=True)
        ]

    def forget(self, seq_id: str) -> None:
        self._held.pop(seq_id, None)

    def _tokens_of(self, seq: Sequence) -> np.ndarray:
        length = seq.get_len()
        held, count = self._held.get(seq.seq_id, (np.empty(0, np.int64), 0))
        if len(held) < length:
            held = np.concatenate([held[:count], np.empty(2 * length - count, np.int64)])
        held[count:length] = tokens_between(seq, count, length)
        self._held[seq.seq_id] = held, length
        return held[:length]
