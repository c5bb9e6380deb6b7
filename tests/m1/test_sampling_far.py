"""Top-p over the whole vocabulary in two ways: on a CPU by bins, elsewhere by halving, where the host must not know
how many tokens lie in a bin. Both keep the same tokens."""

from __future__ import annotations

import pytest
import torch

from folovllm.sample.filters import Filters, _above_line, _above_line_by_halving


def kept_by(find, logits: torch.Tensor, top_p: list[float], min_p: float = 0.0, temperature: float = 1.0) -> list:
    def column(values: list) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)

    rows = len(logits)
    settings = Filters(column([temperature] * rows), column([1] * rows).long(), column(top_p), column([min_p] * rows))
    weights = find(logits, settings).weights
    return [row.nonzero().flatten().tolist() for row in weights]


def test_the_token_that_crosses_the_line_is_kept_by_hand() -> None:
    logits = torch.tensor([[0.4, 0.25, 0.15, 0.1, 0.06, 0.04]]).log()
    for top_p, count in ((0.3, 1), (0.41, 2), (0.75, 3), (0.79, 3), (0.81, 4), (0.97, 6)):
        assert kept_by(_above_line_by_halving, logits, [top_p]) == [list(range(count))]


def test_of_equal_tokens_the_first_ones_are_kept() -> None:
    logits = torch.zeros(3, 8)
    assert kept_by(_above_line_by_halving, logits, [0.1, 0.5, 0.95]) == [[0], [0, 1, 2, 3], list(range(8))]


@pytest.mark.parametrize("seed", range(20))
def test_halving_keeps_what_bins_keep(seed: int) -> None:
    """Logits in bfloat16, so that many are equal; some rows flat, some steep, some masked."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, 700, generator=generator) * torch.tensor([0.01, 0.5, 1, 3, 10, 30]).unsqueeze(-1)
    logits = logits.bfloat16()
    logits[seed % 6, ::2] = -torch.inf
    top_p = torch.rand(6, generator=generator).mul(0.999).tolist()
    for min_p, temperature in ((0.0, 1.0), (0.05, 0.6)):
        arguments = logits, top_p, min_p, temperature
        assert kept_by(_above_line_by_halving, *arguments) == kept_by(_above_line, *arguments)
