import torch

from folovllm.layers.ops import silu_mul
from lab_judge import expect, expect_close, invariant


@invariant(1)
def test_one_number_by_hand():
    expect_close(silu_mul(torch.tensor([[1.0, 2.0]])), torch.tensor([[1.462117]]))


@invariant(1)
def test_a_gate_that_is_shut():
    expect_close(silu_mul(torch.tensor([[0.0, 2.0]])), torch.tensor([[0.0]]))


@invariant(1)
def test_a_gate_that_is_far_open_or_far_shut():
    expect_close(silu_mul(torch.tensor([[200.0, 2.0], [-200.0, 2.0]])), torch.tensor([[400.0], [0.0]]))


@invariant(1)
def test_the_dtype_is_that_of_gate_up():
    out = silu_mul(torch.ones(1, 2, dtype=torch.bfloat16))
    expect(out.dtype, torch.bfloat16)


@invariant(2)
def test_gates_stand_before_ups():
    expect_close(silu_mul(torch.tensor([[1.0, 0.0, 1.0, 2.0, 5.0, 0.0]])), torch.tensor([[1.462117, 0.0, 0.0]]))


@invariant(2)
def test_each_token_for_itself():
    expect_close(silu_mul(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), torch.tensor([[1.462117], [1.761594]]))


@invariant(2)
def test_gate_up_is_only_read():
    gate_up = torch.tensor([[1.0, 2.0]])
    silu_mul(gate_up)
    expect(gate_up, torch.tensor([[1.0, 2.0]]))


@invariant(2)
def test_the_next_call_leaves_the_first_result_alone():
    first = silu_mul(torch.tensor([[1.0, 2.0]]))
    silu_mul(torch.tensor([[0.0, 2.0]]))
    expect_close(first, torch.tensor([[1.462117]]))
