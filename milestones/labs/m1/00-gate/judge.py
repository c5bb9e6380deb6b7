import torch

from folovllm.layers.ops import silu_mul
from lab_judge import expect_close, invariant


@invariant(1)
def test_one_number_by_hand():
    expect_close(silu_mul(torch.tensor([[1.0, 2.0]])), torch.tensor([[1.462117]]))


@invariant(1)
def test_a_gate_that_is_shut():
    expect_close(silu_mul(torch.tensor([[0.0, 2.0]])), torch.tensor([[0.0]]))


@invariant(2)
def test_gates_stand_before_ups():
    expect_close(silu_mul(torch.tensor([[1.0, 0.0, 1.0, 2.0, 5.0, 0.0]])), torch.tensor([[1.462117, 0.0, 0.0]]))


@invariant(2)
def test_each_token_for_itself():
    expect_close(silu_mul(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), torch.tensor([[1.462117], [1.761594]]))
