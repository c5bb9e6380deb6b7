"""A draw over a vocabulary that is cut between ranks: each sends its part's winner, 16 bytes a row, and no logits.

    rank 0   tokens 0 … 4   largest logit - ln E: 2.1, of token 3  ─┐
    rank 1   tokens 5 … 9   largest logit - ln E: 3.4, of token 7  ─┴─▶ token 7

The draw is the exponential race, p / E with an exponential E for each token. Its logarithm is logit - ln E, less what is
the same for all tokens of a row. So the winner of all is the largest of the parts' winners, and it has the row's
distribution. Filters, penalties and log-probabilities need all logits in one place; the engine gathers those.

vLLM: model_executor/layers/logits_processor.py (get_top_tokens)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def part_winners(logits: Tensor, noise: Tensor, first_token: int) -> Tensor:
    """The best of each row in a rank's part of the vocabulary, [num_rows, 2] float64: its score, and its token.

    Args:
        logits: [num_rows, part], divided by the temperature; -inf where a token must not be drawn.
        noise: [num_rows, part], exponential; a row of ones is greedy.
        first_token: of the part.
    """
    scores = logits.double() - noise.double().log()
    best, columns = scores.max(dim=1)
    return torch.stack([best, (columns + first_token).double()], dim=1)


def draw_winners(winners: Sequence[Tensor]) -> Tensor:
    """Token ids [num_rows] from what part_winners() gave on each rank, in their order. Of equal scores the lowest token
    wins, as in one argmax over all."""
    parts = torch.stack(list(winners))  # [ranks, num_rows, 2]
    ranks = parts[:, :, 0].argmax(dim=0)
    return parts[ranks, torch.arange(parts.shape[1]), 1].long()
