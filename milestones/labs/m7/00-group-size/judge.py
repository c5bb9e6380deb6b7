import torch

from folovllm.layers.quantization.codes import Codes
from lab_judge import expect, invariant


def codes(outs, columns, groups):
    return Codes(torch.zeros(outs, columns, dtype=torch.int8), torch.ones(outs, groups), None)


@invariant(1)
def test_two_groups_in_a_row_of_eight():
    expect(codes(outs=7, columns=8, groups=2).group_size, 4)


@invariant(1)
def test_one_scale_for_a_row():
    expect(codes(outs=4, columns=8, groups=1).group_size, 8)


@invariant(1)
def test_a_group_may_have_six():
    expect(codes(outs=2, columns=12, groups=2).group_size, 6)


@invariant(2)
def test_it_is_a_whole_number():
    expect(str(codes(outs=3, columns=256, groups=2).group_size), "128")
