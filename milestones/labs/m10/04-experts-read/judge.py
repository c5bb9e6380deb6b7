from itertools import combinations, product

from folovllm.layers.moe import ExpertsSpec
from lab_judge import expect, expect_close, invariant


def layer(num_experts, top_k):
    return ExpertsSpec(num_experts, top_k, size=8, renormalize=True, layers=frozenset({0}))


@invariant(1)
def test_one_token_reads_its_experts():
    expect_close(layer(128, 8).experts_read(1), 8.0)


@invariant(2)
def test_two_tokens_often_share_one():
    """Of 4 experts two tokens choose one each: the same in one case of four."""
    expect_close(layer(4, 1).experts_read(2), 1.75)


@invariant(2)
def test_all_choices_written_down():
    """Three tokens, two of four experts each."""
    choices = list(product(combinations(range(4), 2), repeat=3))
    mean = sum(len({expert for token in choice for expert in token}) for choice in choices) / len(choices)
    expect_close(layer(4, 2).experts_read(3), mean)


@invariant(2)
def test_eight_tokens_of_a_large_model():
    expect_close(layer(128, 8).experts_read(8), 51.6199, atol=1e-3)


@invariant(2)
def test_a_hundred_tokens_leave_some_out():
    expect_close(layer(128, 8).experts_read(100), 128 * (1 - (15 / 16) ** 100), atol=1e-6)


@invariant(3)
def test_no_token_reads_nothing():
    expect_close(layer(16, 4).experts_read(0), 0.0)


@invariant(3)
def test_all_of_them():
    expect([layer(4, 4).experts_read(1), layer(4, 4).experts_read(9)], [4.0, 4.0])
