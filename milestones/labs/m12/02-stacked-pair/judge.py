import torch

from folovllm.layers.lora import stack_pairs
from lab_judge import expect, invariant

Q = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])
K = torch.tensor([[5.0, 6.0], [7.0, 8.0]]), torch.tensor([[1.0, 2.0]])
V = torch.tensor([[9.0, 1.0]]), torch.tensor([[7.0]])
PARTS = {"q": 2, "k": 1, "v": 1}


def stacked(**found):
    return [each.tolist() for each in stack_pairs(found, PARTS, 2)]


@invariant(1)
def test_the_product_is_that_of_each_part():
    a, b = stack_pairs({"q": Q, "k": K, "v": V}, PARTS, 2)
    x = torch.tensor([1.0, -1.0])
    expect((b @ (a @ x)).tolist(), torch.cat([pair[1] @ (pair[0] @ x) for pair in (Q, K, V)]).tolist())


@invariant(1)
def test_the_order_is_that_of_the_layer():
    expect(stacked(v=V, q=Q), stacked(q=Q, v=V))


@invariant(1)
def test_a_layer_of_two_parts_with_three_inputs():
    a, b = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = {"up": (a, b)}
    both = stack_pairs(found, {"gate": 1, "up": 2}, 3)
    expect([each.tolist() for each in both], [[[1, 0, 2], [0, 1, 0]], [[0, 0], [1, 2], [3, 4]]])
    expect([*found], ["up"])


@invariant(1)
def test_a_layer_may_have_four_parts():
    both = stack_pairs({"fourth": V, "first": V}, {"first": 1, "second": 2, "third": 1, "fourth": 1}, 2)
    expect([each.tolist() for each in both], [[[9, 1], [9, 1]], [[7, 0], [0, 0], [0, 0], [0, 0], [0, 7]]])


@invariant(1)
def test_each_layer_has_a_pair_of_its_own():
    first, second = stack_pairs({"q": Q}, PARTS, 2), stack_pairs({"q": (2 * Q[0], 3 * Q[1])}, PARTS, 2)
    expect([first[0].tolist(), second[0].tolist()], [[[1, 2]], [[2, 4]]])
    expect([first[1][0].item(), second[1][0].item()], [3, 9])


@invariant(2)
def test_blocks_lie_on_the_diagonal():
    expect(stacked(q=Q, k=K, v=V)[1], [[3, 0, 0, 0], [4, 0, 0, 0], [0, 1, 2, 0], [0, 0, 0, 7]])


@invariant(2)
def test_the_as_lie_one_above_the_other():
    expect(stacked(q=Q, k=K, v=V)[0], [[1, 2], [5, 6], [7, 8], [9, 1]])


@invariant(3)
def test_a_part_without_a_pair_has_zeros_and_no_column():
    expect(stacked(q=Q, v=V), [[[1, 2], [9, 1]], [[3, 0], [4, 0], [0, 0], [0, 7]]])


@invariant(4)
def test_no_pair_at_all():
    a, b = stack_pairs({}, PARTS, 2)
    expect([list(a.shape), list(b.shape)], [[0, 2], [4, 0]])
