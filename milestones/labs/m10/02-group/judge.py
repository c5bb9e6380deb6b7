import torch

from folovllm.layers.moe import group
from lab_judge import expect, invariant

CHOSEN = torch.tensor([[2, 0], [0, 3], [3, 0]])  # pairs 0 to 5


@invariant(1)
def test_pairs_are_side_by_side_by_expert():
    expect(group(torch.tensor([[3], [1], [2]]), 4).order.tolist(), [1, 2, 0])


@invariant(2)
def test_pairs_of_an_expert_keep_their_order():
    expect(group(CHOSEN, 4).order.tolist(), [1, 2, 5, 0, 3, 4])


@invariant(2)
def test_so_do_many():
    order = group(torch.zeros(60, 2, dtype=torch.int64), 1).order.tolist()
    expect(order == list(range(120)), True)


@invariant(2)
def test_the_choices_may_be_columns_of_a_wider_tensor():
    wider = torch.tensor([[2, 0, 9], [0, 3, 9], [3, 0, 9]])
    expect(group(wider[:, :2], 4).order.tolist(), [1, 2, 5, 0, 3, 4])


@invariant(3)
def test_where_each_expert_ends():
    expect(group(torch.tensor([[0, 1], [1, 2]]), 3).ends.tolist(), [1, 3, 4])


@invariant(4)
def test_an_expert_without_pairs_ends_where_the_one_before_ends():
    expect(group(CHOSEN, 4).ends.tolist(), [3, 3, 4, 6])


@invariant(4)
def test_so_do_the_first_and_the_last():
    expect(group(torch.tensor([[1], [1]]), 4).ends.tolist(), [0, 2, 2, 2])


@invariant(4)
def test_each_step_has_ends_of_its_own():
    first, second = group(torch.tensor([[1], [1]]), 4), group(torch.tensor([[0], [2]]), 4)
    expect([first.ends.tolist(), second.ends.tolist()], [[0, 2, 2, 2], [1, 1, 2, 2]])


@invariant(5)
def test_both_are_int64():
    found = group(CHOSEN, 4)
    expect([found.order.dtype, found.ends.dtype], [torch.int64, torch.int64])


@invariant(5)
def test_the_choices_stay_as_they_are():
    experts = torch.tensor([[2, 0], [0, 3], [3, 0], [1, 0]])
    group(experts, 4)
    expect(experts.tolist(), [[2, 0], [0, 3], [3, 0], [1, 0]])
