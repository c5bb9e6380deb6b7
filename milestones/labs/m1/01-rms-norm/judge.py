import torch

from folovllm.layers.norm import RMSNorm
from lab_judge import expect, expect_close, invariant


def norm(*weights, eps=0.0, dtype=torch.float32):
    made = RMSNorm(len(weights), eps)
    made.weight.data = torch.tensor(weights, dtype=dtype)
    return made


@invariant(1)
def test_the_root_of_the_mean_square_becomes_one():
    x = torch.tensor([1.0, 7.0])  # the mean of 1 and 49 is 25
    expect_close(norm(1.0, 1.0)(x), [0.2, 1.4], mistakes={"takes-the-mean-off": [-1.0, 1.0]})


@invariant(1)
def test_each_element_has_its_weight():
    x = torch.tensor([1.0, 7.0])
    expect_close(norm(10.0, -1.0)(x), [2.0, -1.4])


@invariant(2)
def test_eps_stands_under_the_root():
    x = torch.tensor([3.0, 3.0])  # 3 / sqrt(9 + 16)
    expect_close(norm(1.0, 1.0, eps=16.0)(x), [0.6, 0.6], mistakes={"eps-outside-the-root": [3 / 19, 3 / 19]})


@invariant(2)
def test_zeros_stay_zeros():
    expect(norm(1.0, 1.0, eps=1e-6)(torch.zeros(2)), [0.0, 0.0])


@invariant(3)
def test_each_token_is_scaled_for_itself():
    x = torch.tensor([[[1.0, 7.0]], [[-100.0, 700.0]]])
    expect_close(norm(1.0, 1.0)(x), [[[0.2, 1.4]], [[-0.2, 1.4]]])


@invariant(4, likely="squares-in-half")
def test_large_numbers_do_not_overflow_in_float16():
    x = torch.tensor([100.0, 700.0], dtype=torch.float16)
    expect_close(norm(1.0, 1.0, dtype=torch.float16)(x), [0.2, 1.4], atol=1e-3)


@invariant(4)
def test_the_dtype_is_that_of_x():
    x = torch.tensor([1.0, 7.0], dtype=torch.bfloat16)
    got = norm(1.0, 1.0, dtype=torch.bfloat16)(x).dtype
    expect(got, torch.bfloat16)


@invariant(5)
def test_the_first_layer_begins_the_stream():
    x = torch.tensor([1.0, 7.0])
    read, stream = norm(1.0, 1.0).add_and_norm(x, None)
    expect_close(read, [0.2, 1.4])
    expect_close(stream, [1.0, 7.0], mistakes={"streams-the-norm": [0.2, 1.4]})


@invariant(5)
def test_the_stream_carries_the_sum():
    x, residual = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 4.0])
    read, stream = norm(1.0, 1.0).add_and_norm(x, residual)
    expect_close(read, [0.2, 1.4])
    expect_close(stream, [1.0, 7.0], mistakes={"streams-the-norm": [0.2, 1.4]})
