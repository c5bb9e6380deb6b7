import torch

from folovllm.quantize.gptq import gptq, inverse_factor
from folovllm.quantize.rounding import Grid
from lab_judge import expect, invariant


def integers(rows, groups=1, scale=1.0):
    """A grid of the whole numbers from -8 to 7 times `scale`."""
    return Grid(torch.full((rows, groups), scale), torch.zeros(rows, groups, dtype=torch.int8), 4, True)


def alike(size, seed):
    """A Hessian of inputs that rise and fall together."""
    x = torch.randn(4 * size, size, generator=torch.Generator().manual_seed(seed))
    x = 0.3 * x + x.cumsum(1) / 8
    return x.T @ x / len(x)


def slowly(weight, hessian, grid):
    """In float64, each move by solving for all columns that are left. Codes as lists."""
    upper = inverse_factor(hessian).double()
    damped = torch.linalg.inv(upper.T @ upper)
    start, size = weight.double(), weight.shape[1]
    meant, values = start.clone(), torch.zeros(weight.shape)
    left = hessian.diag().argsort(descending=True, stable=True).tolist()
    done = []
    while left:
        column = left.pop(0)
        group = column // (size // grid.scale.shape[1])
        scale, zero = grid.scale[:, group].double(), grid.zero[:, group]
        values[:, column] = ((meant[:, column] / scale).round() + zero).clamp(-8, 7)
        meant[:, column] = (values[:, column] - zero) * scale
        done.append(column)
        if left:
            pull = (meant - start)[:, done] @ damped[done][:, left]
            meant[:, left] = start[:, left] - torch.linalg.solve(damped[left][:, left], pull.T).T
    return values.tolist()


@invariant(1)
def test_independent_inputs_get_the_nearest_codes():
    weight = torch.tensor([[0.4, 1.6, -2.7, 0.9]])
    codes = gptq(weight, torch.diag(torch.tensor([3.0, 1.0, 4.0, 2.0])), integers(1))
    expect(codes.values.tolist(), [[0, 2, -3, 1]])


@invariant(1)
def test_the_note_by_hand():
    hessian = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 4.0]])
    codes = gptq(torch.tensor([[0.4, 0.4, 0.4]]), hessian, integers(1))
    expect(codes.values.tolist(), [[0, 1, 0]])


@invariant(1)
def test_a_code_of_8_bits_may_be_200_above_its_zero():
    hessian = torch.tensor([[2.0, 0.9], [0.9, 1.0]])
    grid = Grid(torch.ones(1, 1), torch.tensor([[-128]], dtype=torch.int8), 8, False)
    codes = gptq(torch.tensor([[200.3, 0.3]]), hessian, grid)
    expect(codes.values.tolist(), [[72, -127]])  # 0.3 lost on the first, so the second is more than 0.5


@invariant(1)
def test_the_column_with_the_larger_input_comes_first():
    hessian = torch.tensor([[1.0, 1.8], [1.8, 4.0]])
    codes = gptq(torch.tensor([[0.4, 0.4]]), hessian, integers(1))
    expect(codes.values.tolist(), [[1, 0]])


@invariant(2)
def test_a_column_keeps_its_groups_grid():
    scale, zero = torch.tensor([[1.0, 0.1]]), torch.tensor([[0, -3]], dtype=torch.int8)
    weight = torch.tensor([[2.0, 3.0, 0.4, -0.2]])
    codes = gptq(weight, torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0])), Grid(scale, zero, 4, False))
    expect(codes.values.tolist(), [[2, 3, 1, -5]])


@invariant(3)
def test_a_move_by_hand():
    hessian = torch.tensor([[4.0, 0.8], [0.8, 1.0]])
    codes = gptq(torch.tensor([[0.4, 0.45], [0.4, 0.38]]), hessian, integers(2))
    # 0.2 of what is missing: 0.4 * 0.8 / 1.0 = 0.32, and a little less for the damping.
    expect(codes.values.tolist(), [[0, 1], [0, 1]])


@invariant(3)
def test_moves_as_a_slow_computation_finds_them():
    weight, hessian = torch.randn(3, 24, generator=torch.Generator().manual_seed(1)), alike(24, seed=2)
    grid = integers(3, groups=3, scale=0.4)
    expect(gptq(weight, hessian, grid).values.tolist(), slowly(weight, hessian, grid))


@invariant(2)
def test_the_error_is_that_of_what_the_codes_mean():
    scale, zero = torch.full((3, 3), 0.3), torch.tensor([[2, -3, 0], [-1, 4, 1], [3, 3, -2]], dtype=torch.int8)
    weight, hessian = 0.4 * torch.randn(3, 24, generator=torch.Generator().manual_seed(8)), alike(24, seed=9)
    grid = Grid(scale, zero, 4, False)
    expect(gptq(weight, hessian, grid).values.tolist(), slowly(weight, hessian, grid))


@invariant(1)
def test_among_many_equals_the_first_comes_first():
    near = torch.arange(40)
    hessian = 0.8 ** (near[:, None] - near).abs().float()  # all of one size, neighbours alike
    weight, grid = torch.randn(2, 40, generator=torch.Generator().manual_seed(10)), integers(2, scale=0.4)
    expect(gptq(weight, hessian, grid).values.tolist(), slowly(weight, hessian, grid))


@invariant(4)
def test_more_columns_than_a_block():
    weight, hessian = torch.randn(2, 160, generator=torch.Generator().manual_seed(3)), alike(160, seed=4)
    grid = integers(2, groups=5, scale=0.4)
    expect(gptq(weight, hessian, grid).values.tolist(), slowly(weight, hessian, grid))


@invariant(4)
def test_three_blocks():
    weight, hessian = torch.randn(2, 264, generator=torch.Generator().manual_seed(5)), alike(264, seed=6)
    grid = integers(2, groups=3, scale=0.5)
    expect(gptq(weight, hessian, grid).values.tolist(), slowly(weight, hessian, grid))


@invariant(4)
def test_the_third_block_is_moved_by_the_first():
    hessian, weight = torch.eye(300), torch.zeros(1, 300)
    hessian[0, 299] = hessian[299, 0] = 0.9
    weight[0, 0] = weight[0, 299] = 0.4  # the one becomes 0, the other 0.4 + 0.9 * 0.4
    values = gptq(weight, hessian, integers(1)).values[0]
    expect((values[0].item(), values[299].item()), (0, 1))


@invariant(5)
def test_the_weight_stays():
    weight, hessian = torch.randn(3, 16), alike(16, seed=7)
    before = weight.tolist(), hessian.tolist()
    codes = gptq(weight, hessian, integers(3, groups=2))
    expect((weight.tolist(), hessian.tolist()), before)
    expect((codes.values.dtype, codes.scale.tolist()), (torch.int8, [[1.0, 1.0]] * 3))
