"""Verifies draft tokens: draw what the model would have drawn, and go on while the draft has the same.

    draft        the  cat  sat  on             computed with the last token in one forward: 5 rows of logits
    drawn        the  cat  lay                 the third differs: it is kept, since it was drawn as always, and what
    gained       the  cat  lay                 was computed behind "sat" is void

The logits at a position are right as long as all tokens before it are those of the draft. So each token that is gained
was drawn from the logits, with the random number, and after the penalties that it would have been drawn with one by
one. Greedy and seeded output is the same, token for token, and no generator has to be turned back. With a draft of one
token this keeps as many as rejection sampling would (sample/rejection.py).

Leviathan et al., ICML 2023, and Chen et al., 2023, for sampling. vLLM: v1/sample/rejection_sampler.py
"""

from __future__ import annotations

from collections.abc import Callable

Draw = Callable[[list[int], int], list[int | None]]
"""(indices, position): a token for each of these sequences, at this position of its run. None: nothing to draw."""


def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    """The tokens that each sequence gains, one to len(drafts[i]) + 1.

    drafts: the draft tokens of each sequence, perhaps none.
    draw: it is asked for one position after the other. What it has drawn so far is what the sequences have gained.
    """
    gained: list[list[int]] = [[] for _ in drafts]
    indices, position = list(range(len(drafts))), 0
    while indices:
        agree = []
        for index, token_id in zip(indices, draw(indices, position), strict=True):
            if token_id is None:
                continue
            gained[index].append(token_id)
            if position < len(drafts[index]) and drafts[index][position] == token_id:
                agree.append(index)
        indices, position = agree, position + 1
    return gained
