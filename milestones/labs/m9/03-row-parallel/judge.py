import torch

from folovllm.layers.linear import Linear, LinearMethod
from folovllm.layers.parallel import RowParallelMethod
from lab_judge import expect, invariant
from support import Group


class Doubles(LinearMethod):
    """Keeps half of the weight, and multiplies by twice what it keeps."""

    def create_weights(self, layer, *, bias):
        layer.half = torch.tensor([[1.0], [0.5]])
        layer.bias = None

    def apply(self, layer, x):
        return x @ layer.half.T * 2


@invariant(1)
def test_the_inner_method_makes_the_weight_and_multiplies():
    layer = Linear(1, 2, method=RowParallelMethod(Doubles(), Group(0), {}))
    expect(layer(torch.tensor([[3.0]])), torch.tensor([[6.0, 3.0]]))


@invariant(2)
def test_the_note_s_two_by_two():
    group = Group(0, other=torch.tensor([[0.0, 4.0]]))  # what rank 1 gives: 1 * (0, 4)
    layer = Linear(1, 2, method=RowParallelMethod(LinearMethod(), group, {}))
    layer.weight.data = torch.tensor([[2.0], [1.0]])  # B's first row
    expect(layer(torch.tensor([[3.0]])), torch.tensor([[6.0, 7.0]]))


@invariant(2)
def test_each_product_is_one_of_its_own():
    layer = Linear(1, 2, method=RowParallelMethod(LinearMethod(), Group(0), {}))
    layer.weight.data, x = torch.tensor([[2.0], [1.0]]), torch.tensor([[3.0]])
    outs = [layer(each) for each in (x, torch.tensor([[5.0]]))]
    expect(([out.tolist() for out in outs], x.tolist()), ([[[6.0, 3.0]], [[10.0, 5.0]]], [[3.0]]))


@invariant(2)
def test_a_sum_in_bfloat16_is_one():
    layer = Linear(1, 2, method=RowParallelMethod(LinearMethod(), Group(0), {}))
    layer.weight.data = torch.tensor([[2.0], [1.0]], dtype=torch.bfloat16)
    out = layer(torch.tensor([[3.0]], dtype=torch.bfloat16))
    expect((out.tolist(), str(out.dtype)), ([[6.0, 3.0]], "torch.bfloat16"))


@invariant(3)
def test_rank_0_has_the_bias():
    layer = Linear(1, 2, bias=True, method=RowParallelMethod(LinearMethod(), Group(0), {}))
    layer.weight.data, layer.bias.data = torch.tensor([[2.0], [1.0]]), torch.tensor([10.0, 20.0])
    expect(layer(torch.tensor([[3.0]])), torch.tensor([[16.0, 23.0]]))


@invariant(3)
def test_rank_1_has_none():
    layer = Linear(1, 2, bias=True, method=RowParallelMethod(LinearMethod(), Group(1), {}))
    expect(layer.bias is None, True)


@invariant(3)
def test_a_layer_without_a_bias_gets_none():
    layer = Linear(1, 2, method=RowParallelMethod(LinearMethod(), Group(0), {}))
    expect(layer.bias is None, True)


@invariant(3)
def test_neither_has_rank_2():
    layer = Linear(1, 2, bias=True, method=RowParallelMethod(LinearMethod(), Group(2), {}))
    expect(layer.bias is None, True)


@invariant(4)
def test_one_sum_of_the_products():
    group = Group(1, other=torch.tensor([[6.0, 3.0]]))
    layer = Linear(1, 2, method=RowParallelMethod(LinearMethod(), group, {}))
    layer.weight.data = torch.tensor([[0.0], [4.0]])  # B's second row
    layer(torch.tensor([[1.0]]))
    given = [x.tolist() for x in group.given]
    expect(given, [[[0.0, 4.0]]])
