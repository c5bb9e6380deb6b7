"""A draw over a vocabulary in parts is the draw over all of it."""

from __future__ import annotations

import torch

from folovllm.distributed.parallel_state import part
from folovllm.sample.winners import draw_winners, part_winners


def test_winners_of_any_parts_are_the_winners_of_all():
    logits = torch.randn(50, 37, generator=torch.Generator().manual_seed(0))
    logits[:, 5] = -torch.inf
    noise = torch.empty(50, 37).exponential_(generator=torch.Generator().manual_seed(1))
    expected = (logits.double() - noise.double().log()).argmax(dim=1)
    for ranks in (1, 2, 5):
        parts = [part(37, rank, ranks) for rank in range(ranks)]
        columns = [slice(own.start, own.stop) for own in parts]
        winners = [part_winners(logits[:, own], noise[:, own], own.start) for own in columns]
        assert draw_winners(winners).tolist() == expected.tolist()
        assert [each.nbytes for each in winners] == [16 * 50] * ranks


def test_winners_have_the_rows_distribution():
    """Token t of four has the probability (t + 1) / 10, on two ranks."""
    rows = 40_000
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(rows, 4)
    noise = torch.empty(rows, 4).exponential_(generator=torch.Generator().manual_seed(0))
    drawn = draw_winners([part_winners(logits[:, at : at + 2], noise[:, at : at + 2], at) for at in (0, 2)])
    shares = drawn.bincount(minlength=4) / rows
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.2, 0.3, 0.4]), rtol=0, atol=0.01)
