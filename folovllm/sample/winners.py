"""A draw over a vocabulary that is cut between ranks: each sends its part's winner, 16 bytes a row, and no logits.

vLLM: model_executor/layers/logits_processor.py (get_top_tokens)
"""

import torch


def part_winners(logits: torch.Tensor, noise: torch.Tensor, first_token: int) -> torch.Tensor:
    """[num_rows, 2] float64: each row's largest logit - ln E, and its token. E is `noise`; ones if greedy."""
    best, columns = (logits.double() - noise.double().log()).max(dim=1)
    return torch.stack([best, (columns + first_token).double()], dim=1)


def draw_winners(winners: list[torch.Tensor]) -> torch.Tensor:
    """Token ids [num_rows] from all ranks' winners, in their order; of equal scores the lowest, as in one argmax."""
    parts = torch.stack(winners)  # [ranks, num_rows, 2]
    return parts[parts[:, :, 0].argmax(dim=0), torch.arange(parts.shape[1]), 1].long()
