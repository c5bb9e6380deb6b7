import math

import torch

from folovllm.sample.winners import draw_winners, part_winners
from lab_judge import expect, expect_close, invariant

INF = math.inf


@invariant(1)
def test_greedy_rows_have_noise_of_ones():
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.0, -1.0]])
    found = part_winners(logits, torch.ones(2, 3), 0)
    expect(found.tolist(), [[3.0, 1.0], [0.5, 0.0]])


@invariant(1)
def test_a_small_number_wins_the_race():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    noise = torch.tensor([[math.exp(-3.0), math.exp(1.0), 1.0]])  # scores 4, 2 and 2
    found = part_winners(logits, noise, 0)
    expect_close(found, torch.tensor([[4.0, 0.0]], dtype=torch.float64))


@invariant(2)
def test_tokens_are_those_of_the_vocabulary():
    found = part_winners(torch.tensor([[1.0, 3.0, 2.0]]), torch.ones(1, 3), 50)
    expect(found[:, 1].tolist(), [51.0])


@invariant(3)
def test_every_token_is_exact():
    found = part_winners(torch.tensor([[1.0, 3.0]]), torch.ones(1, 2), 16_777_216)
    expect((found.dtype, list(found.shape)), (torch.float64, [1, 2]))
    expect(found.tolist(), [[3.0, 16_777_217.0]])


@invariant(3)
def test_scores_are_compared_in_float64():
    logits, ones = torch.tensor([[1.0, 1.0 + 1e-12]], dtype=torch.float64), torch.ones(1, 2)
    expect(part_winners(logits, ones, 0)[:, 1].tolist(), [1.0])
    noise = torch.tensor([[1.0, 1.0 - 1e-12]], dtype=torch.float64)
    expect(part_winners(ones, noise, 0)[:, 1].tolist(), [1.0])


@invariant(3)
def test_so_is_the_logarithm():
    noise = torch.tensor([[0.3]])
    found = part_winners(torch.zeros(1, 1), noise, 0)
    expect_close(found[0, 0].item(), -math.log(noise.item()), atol=1e-12)


@invariant(3)
def test_a_score_may_be_large():
    found = part_winners(torch.tensor([[800.0, 801.0]]), torch.ones(1, 2), 0)
    expect(found.tolist(), [[801.0, 1.0]])


@invariant(4)
def test_a_masked_token_does_not_win():
    noise = torch.tensor([[1e-30, 1.0, 1.0]])
    found = part_winners(torch.tensor([[-INF, -5.0, -6.0]]), noise, 0)
    expect(found.tolist(), [[-5.0, 1.0]])


@invariant(4)
def test_however_small_the_other_is():
    found = part_winners(torch.tensor([[-INF, -1e30]]), torch.ones(1, 2), 0)
    expect(found[:, 1].tolist(), [1.0])


@invariant(5)
def test_each_row_has_a_rank_of_its_own():
    rank_0 = torch.tensor([[2.1, 3.0], [9.0, 1.0], [-INF, 0.0]], dtype=torch.float64)
    rank_1 = torch.tensor([[3.4, 7.0], [8.0, 9.0], [-5.0, 6.0]], dtype=torch.float64)
    found = draw_winners([rank_0, rank_1])
    expect(found.tolist(), [7, 1, 6])
    expect(found.dtype, torch.int64)


@invariant(5)
def test_three_ranks_draw_what_one_draws():
    logits = torch.tensor([[0.3, 1.2, 0.1, 2.0, 1.9, 0.4], [2.2, 0.3, 0.2, 0.1, 0.5, 2.1]])
    noise = torch.tensor([[0.9, 0.2, 1.5, 2.5, 0.7, 0.1], [1.8, 0.4, 0.3, 0.9, 1.1, 1.2]])
    parts = [part_winners(logits[:, at : at + 2], noise[:, at : at + 2], at) for at in (0, 2, 4)]
    expect(draw_winners(parts).tolist(), [1, 5])


@invariant(5)
def test_of_three_ranks_the_middle_one_may_win():
    ranks = [[[1.0, 0.0]], [[5.0, 3.0]], [[2.0, 6.0]]]
    winners = [torch.tensor(rows, dtype=torch.float64) for rows in ranks]
    expect(draw_winners(winners).tolist(), [3])


@invariant(5)
def test_each_step_has_tokens_of_its_own():
    first, second = (draw_winners([torch.tensor([[1.0, token]], dtype=torch.float64)]) for token in (3.0, 4.0))
    expect([first.tolist(), second.tolist()], [[3], [4]])


@invariant(5)
def test_ranks_are_compared_in_float64():
    winners = [torch.tensor([[score, token]], dtype=torch.float64) for score, token in ((1.0, 3.0), (1.0 + 1e-12, 9.0))]
    expect(draw_winners(winners).tolist(), [9])


@invariant(6)
def test_of_equals_the_lowest():
    rank_0 = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    rank_1 = torch.tensor([[3.0, 9.0]], dtype=torch.float64)
    expect(draw_winners([rank_0, rank_1]).tolist(), [4])
    found = part_winners(torch.tensor([[3.0, 1.0, 3.0]]), torch.ones(1, 3), 0)
    expect(found.tolist(), [[3.0, 0.0]])


@invariant(7)
def test_logits_and_noise_are_read_only():
    logits, noise = torch.tensor([[1.0, 3.0]], dtype=torch.float64), torch.tensor([[2.0, 4.0]], dtype=torch.float64)
    part_winners(logits, noise, 0)
    expect([logits.tolist(), noise.tolist()], [[[1.0, 3.0]], [[2.0, 4.0]]])


@invariant(7)
def test_so_are_the_winners():
    winners = [torch.tensor([[1.0, 3.0]], dtype=torch.float64), torch.tensor([[5.0, 9.0]], dtype=torch.float64)]
    draw_winners(winners)
    expect([part.tolist() for part in winners], [[[1.0, 3.0]], [[5.0, 9.0]]])
