import torch

from folovllm.layers.norm import rms_norm
from lab_judge import expect, expect_close, invariant


def norm(x, *weights, residual=None, eps=0.0):
    return rms_norm(x, residual, torch.tensor(weights, dtype=x.dtype), eps)


@invariant(1)
def test_the_root_of_the_mean_square_becomes_one():
    x = torch.tensor([1.0, 7.0])  # the mean of 1 and 49 is 25
    expect_close(norm(x, 1.0, 1.0)[0], [0.2, 1.4])


@invariant(1)
def test_each_element_has_its_weight():
    x = torch.tensor([1.0, 7.0])
    expect_close(norm(x, 10.0, -1.0)[0], [2.0, -1.4])


@invariant(2)
def test_eps_stands_under_the_root():
    x = torch.tensor([3.0, 3.0])  # 3 / sqrt(9 + 16)
    expect_close(norm(x, 1.0, 1.0, eps=16.0)[0], [0.6, 0.6])


@invariant(2)
def test_zeros_stay_zeros():
    expect(norm(torch.zeros(2), 1.0, 1.0, eps=1e-6)[0], [0.0, 0.0])


@invariant(3)
def test_each_token_is_scaled_for_itself():
    x = torch.tensor([[[1.0, 7.0]], [[-100.0, 700.0]]])
    expect_close(norm(x, 1.0, 1.0)[0], [[[0.2, 1.4]], [[-0.2, 1.4]]])


@invariant(4)
def test_large_numbers_do_not_overflow_in_float16():
    x = torch.tensor([100.0, 700.0], dtype=torch.float16)
    expect_close(norm(x, 1.0, 1.0)[0], [0.2, 1.4], atol=1e-3)


@invariant(4)
def test_the_dtype_is_that_of_x():
    x = torch.tensor([1.0, 7.0], dtype=torch.bfloat16)
    got = norm(x, 1.0, 1.0)[0].dtype
    expect(got, torch.bfloat16)


@invariant(4)
def test_the_dtype_of_the_stream_is_that_of_x_too():
    x = torch.tensor([1.0, 7.0], dtype=torch.bfloat16)
    read, stream = norm(x, 1.0, 1.0, residual=x)
    expect((read.dtype, stream.dtype), (torch.bfloat16, torch.bfloat16))


@invariant(5)
def test_the_first_layer_begins_the_stream():
    x = torch.tensor([1.0, 7.0])
    read, stream = norm(x, 1.0, 1.0)
    expect_close(read, [0.2, 1.4])
    expect_close(stream, [1.0, 7.0])


@invariant(5)
def test_the_stream_carries_the_sum():
    x, residual = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 4.0])
    read, stream = norm(x, 1.0, 1.0, residual=residual)
    expect_close(read, [0.2, 1.4])
    expect_close(stream, [1.0, 7.0])


@invariant(5)
def test_what_is_given_is_only_read():
    x, residual = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 4.0])
    norm(x, 1.0, 1.0, residual=residual)
    expect((x.tolist(), residual.tolist()), ([1.0, 3.0], [0.0, 4.0]))


@invariant(5)
def test_so_is_the_beginning_of_the_stream():
    x = torch.tensor([1.0, 7.0])
    norm(x, 1.0, 1.0)
    expect(x, [1.0, 7.0])


@invariant(5)
def test_and_so_is_the_weight():
    x, weight = torch.tensor([1.0, 7.0]), torch.tensor([10.0, -1.0])
    rms_norm(x, None, weight, 1e-6)
    expect(weight, [10.0, -1.0])
