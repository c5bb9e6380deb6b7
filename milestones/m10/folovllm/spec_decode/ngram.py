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
from folovllm.worker.proposer import Proposer


def find_continuation(token_ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """What followed the last tokens when they occurred before, at most `count` tokens.

    The most of them that occurred before count, `longest` at most; fewer than `shortest` say nothing. Of several
    occurrences it is the latest, for the text may have changed its subject.
    """
    tokens = np.fromiter(token_ids, np.int64, len(token_ids))  # 32,000: a search in Python took ten times as long
    ends = np.flatnonzero(tokens[:-1] == tokens[-1:]) + 1  # of earlier occurrences of the last token, then of more
    found: list[int] = []
    for size in range(1, min(longest, len(tokens) - 1) + 1):
        ends = ends[ends >= size]
        ends = ends[tokens[ends - size] == tokens[-size]]
        if size >= shortest and len(ends) > 0:
            found = token_ids[ends[-1] : ends[-1] + count]
    return found


class NgramProposer(Proposer):
    """Keeps nothing: a sequence's own tokens are all that it reads."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest

    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        return [
            find_continuation(seq.get_token_ids(), self.shortest, self.longest, count)
            for seq, count in zip(seqs, counts, strict=True)
        ]
