"""What speculative decoding has come to: how many tokens were proposed, and how many of them were accepted.

vLLM: v1/spec_decode/metrics.py
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class SpecDecodingStats:
    """Since the engine started. A draft is one run of tokens for one sequence; it has `num_draft_tokens` of them."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    """Of how many drafts the draft token at this position was accepted."""

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.num_accepted_tokens_per_pos)

    @property
    def acceptance_length(self) -> float:
        """Tokens that a sequence gains by a step with a draft, the one that needs no draft among them; 1 before any."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    def __add__(self, other: SpecDecodingStats) -> SpecDecodingStats:
        pairs = zip_longest(self.num_accepted_tokens_per_pos, other.num_accepted_tokens_per_pos, fillvalue=0)
        return SpecDecodingStats(
            self.num_drafts + other.num_drafts,
            self.num_draft_tokens + other.num_draft_tokens,
            tuple(map(sum, pairs)),
        )
