import torch

from folovllm.layers.moe import Groups, put_back
from lab_judge import expect, invariant

# Two tokens of two experts each: expert 0 has pairs 1 and 2, expert 1 has pair 0, expert 2 has pair 3.
GROUPS = Groups(torch.tensor([1, 2, 0, 3]), torch.tensor([2, 3, 4]))


@invariant(1)
def test_one_expert_a_token():
    groups = Groups(torch.tensor([2, 0, 1]), torch.tensor([1, 3]))
    rows = torch.tensor([[20.0], [0.0], [10.0]])
    expect(put_back(rows, groups, torch.ones(3, 1)).tolist(), [[0.0], [10.0], [20.0]])


@invariant(1)
def test_a_token_is_the_sum_of_its_rows():
    rows = torch.tensor([[1.0, 0.0], [20.0, 0.0], [3.0, 1.0], [40.0, 2.0]])
    expect(put_back(rows, GROUPS, torch.ones(2, 2)).tolist(), [[4.0, 1.0], [60.0, 2.0]])


@invariant(2)
def test_each_row_has_the_weight_of_its_pair():
    rows, weights = torch.tensor([[8.0], [8.0], [8.0], [8.0]]), torch.tensor([[0.5, 0.25], [1.0, 2.0]])
    expect(put_back(rows, GROUPS, weights).tolist(), [[6.0], [24.0]])


@invariant(2)
def test_and_not_that_of_another():
    rows, weights = torch.tensor([[1.0], [10.0], [100.0], [1000.0]]), torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    expect(put_back(rows, GROUPS, weights).tolist(), [[102.0], [8040.0]])


@invariant(3)
def test_places_are_added_one_after_the_other():
    groups = Groups(torch.tensor([2, 1, 0]), torch.tensor([1, 2, 3]))  # the first choice has the highest number
    rows = torch.tensor([[1.0], [-1e8], [1e8]])
    expect(put_back(rows, groups, torch.ones(1, 3)).tolist(), [[1.0]])


@invariant(3)
def test_each_step_has_sums_of_its_own():
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    first, second = put_back(rows, GROUPS, torch.ones(2, 2)), put_back(10 * rows, GROUPS, torch.ones(2, 2))
    expect([first.tolist(), second.tolist()], [[[4.0], [6.0]], [[40.0], [60.0]]])


@invariant(3)
def test_eight_places_are_added_one_after_the_other():
    groups = Groups(torch.arange(8), torch.arange(1, 9))
    rows = torch.tensor([[1.0], [1e8], [-1e8], [1.0], [1e8], [1.0], [-1e8], [1.0]])
    expect(put_back(rows, groups, torch.ones(1, 8)).tolist(), [[1.0]])  # in float32 only the last 1 is left


@invariant(4)
def test_sums_of_bfloat16_are_rounded_once():
    groups = Groups(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]))
    rows = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    out = put_back(rows, groups, torch.ones(1, 3))
    expect([out.dtype, out.tolist()], [torch.bfloat16, [[258.0]]])


@invariant(4)
def test_products_are_not_rounded():
    groups = Groups(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]))
    rows, weights = torch.ones(3, 1, dtype=torch.bfloat16), torch.full((1, 3), 257.0)  # bfloat16 has 256 and 258
    expect(put_back(rows, groups, weights).tolist(), [[772.0]])  # 771, rounded; 256 * 3 would be 768


@invariant(4)
def test_so_are_those_of_float16():
    groups = Groups(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]))
    rows = torch.tensor([[2048.0], [1.0], [1.0]], dtype=torch.float16)
    out = put_back(rows, groups, torch.ones(1, 3))
    expect([out.dtype, out.tolist()], [torch.float16, [[2050.0]]])


@invariant(5)
def test_the_rows_are_read_only():
    rows, weights = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.full((2, 2), 0.5)
    put_back(rows, GROUPS, weights)
    expect(rows.tolist(), [[1.0], [2.0], [3.0], [4.0]])
    expect((weights.tolist(), GROUPS.order.tolist()), ([[0.5, 0.5]] * 2, [1, 2, 0, 3]))
