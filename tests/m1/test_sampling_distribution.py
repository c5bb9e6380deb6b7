"""Drawn tokens follow the exact distribution of their settings, for every filter alone and combined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm import SamplingParams
from folovllm.sample import draw as draws
from folovllm.sample.filters import Candidates
from folovllm.sample.sampler import Sampler
from tests.m1.sampling_reference import FILTERS, assert_fits, distribution, distribution_of, draw_many, make_row, sample

DRAWS = 20_000


def normal_logits(vocab_size: int, scale: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("draw", ["inverse_cdf", "exponential_race"])
@pytest.mark.parametrize("name", FILTERS)
def test_draws_follow_the_exact_distribution(name: str, draw: str) -> None:
    logits = normal_logits(40, 1.5)
    counts = draw_many(logits, SamplingParams(**FILTERS[name]), DRAWS, draw)
    assert_fits(counts, distribution(logits.tolist(), **FILTERS[name]))


def test_equal_logits_beyond_the_first_look_are_cut_where_the_line_is_crossed() -> None:
    params = SamplingParams(top_p=0.75, logprobs=4000, logprobs_mode="processed")
    kept = np.count_nonzero(distribution_of(torch.zeros(4000), make_row(params)))
    assert abs(kept - 3000) <= 1  # sums of 1/4000 are rounded, where weights are probabilities


@pytest.mark.parametrize("draw", ["inverse_cdf", "exponential_race"])
def test_rows_that_need_a_wider_look_and_rows_that_do_not_share_a_batch(draw: str) -> None:
    scales, lines = (9.0, 0.1, 9.0, 0.1), (0.99, 0.5, 0.3, 0.9)
    logits = torch.stack([normal_logits(3000, scale) for scale in scales])
    rows = [make_row(SamplingParams(top_p=p, logprobs=3000, logprobs_mode="processed")) for p in lines]
    output = sample(logits, rows, Sampler(draw))
    assert output.logprobs is not None
    for row, top_p in enumerate(lines):
        expected = distribution(logits[row].tolist(), top_p=top_p)
        ids, logprobs = output.logprobs.token_ids[row, 1:], output.logprobs.logprobs[row, 1:]
        np.testing.assert_allclose(logprobs.double().exp(), expected[ids], rtol=1e-4, atol=1e-12)
        assert expected[output.token_ids[row]] > 0


@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 100, "top_p": 0.95}], ids=str)
def test_draws_from_thousands_of_tokens_follow_the_exact_distribution(filters: dict) -> None:
    logits = normal_logits(3000, 3.0)
    assert_fits(draw_many(logits, SamplingParams(**filters), DRAWS), distribution(logits.tolist(), **filters))


TOP_P, MIN_P = {"top_p": 0.9}, {"min_p": 0.5}


@pytest.mark.parametrize(
    "scale, filters, sizes",
    [
        (4.0, TOP_P, (1, 1024)), (1.5, TOP_P, (1024, 20_000)), (0.2, TOP_P, (20_000, 30_000)),
        (0.2, MIN_P, (1024, 20_000)), (0.2, {**TOP_P, "min_p": 0.2}, (20_000, 30_000)),
    ],
)  # fmt: skip
def test_small_and_large_sets_are_those_of_the_definition(scale: float, filters: dict, sizes: tuple[int, int]) -> None:
    logits = normal_logits(30_000, scale)
    expected = distribution(logits.tolist(), **filters)
    assert sizes[0] < np.count_nonzero(expected) <= sizes[1]
    params = SamplingParams(**filters, logprobs=30_000, logprobs_mode="processed")
    np.testing.assert_allclose(distribution_of(logits, make_row(params)), expected, rtol=1e-4, atol=1e-12)


def test_the_token_that_crosses_the_line_of_top_p_is_in() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    assert np.count_nonzero(draw_many(logits, SamplingParams(top_p=0.5), 500)) == 1  # 0.5 reaches 0.5
    assert np.count_nonzero(draw_many(logits, SamplingParams(top_p=0.51), 500)) == 2  # 0.5 does not, 0.8 does
    assert np.count_nonzero(draw_many(logits, SamplingParams(top_p=0.81), 500)) == 3


def test_top_p_that_is_reached_exactly_takes_no_further_token() -> None:
    counts = draw_many(torch.zeros(4), SamplingParams(top_p=0.5), 2000)  # equal logits: sums without rounding
    assert np.count_nonzero(counts) == 2


@pytest.mark.parametrize("filters", [{"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1}, {"top_k": 3, "top_p": 1e-9}])
def test_at_least_one_token_always_stays(filters: dict) -> None:
    logits = normal_logits(40, 1.0)
    counts = draw_many(logits, SamplingParams(**filters), 200)
    assert counts[logits.argmax()] == 200


def test_top_k_keeps_exactly_k_of_equal_logits() -> None:
    counts = draw_many(torch.zeros(40), SamplingParams(top_k=5), 5000)
    assert np.count_nonzero(counts) == 5


def test_a_temperature_just_above_greedy_neither_overflows_nor_divides_by_zero() -> None:
    logits = torch.tensor([3.0e4, -3.0e4, 2.9e4, 0.0])
    for filters in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert draw_many(logits, SamplingParams(temperature=1.0001e-5, **filters), 100)[0] == 100


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    vocab_size=st.sampled_from([2, 17, 300, 1500]),
    temperature=st.floats(0.1, 3.0),
    k=st.one_of(st.just(-1), st.integers(1, 2000)),
    p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
)
def test_the_kept_set_and_its_probabilities_are_the_definitions(
    seed: int, vocab_size: int, temperature: float, k: int, p: float, min_p: float
) -> None:
    logits = normal_logits(vocab_size, 2.0, seed)
    params = SamplingParams(
        temperature=temperature, top_k=k, top_p=p, min_p=min_p, logprobs=vocab_size, logprobs_mode="processed"
    )
    expected = distribution(logits.tolist(), temperature, k, p, min_p)
    found = distribution_of(logits, make_row(params))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)
    assert not found[expected == 0].any()  # exactly zero


def columns_at(weights: torch.Tensor, points: list[float]) -> list[int]:
    """Where uniform numbers fall on one row of weights."""
    uniform = torch.tensor(points, dtype=torch.float64).unsqueeze(-1)
    return draws.draw_inverse_cdf(Candidates(weights.expand(len(points), -1)), uniform).tolist()


@pytest.mark.parametrize("vocab_size", [128, 5001, 151_936])
def test_the_ends_of_the_line_belong_to_tokens_with_mass(vocab_size: int) -> None:
    weights = torch.zeros(vocab_size)
    weights[[5, 70, 100]] = torch.tensor([1.0, 2.0, 1.0])
    assert columns_at(weights, [0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-53, 1.0]) == [
        5, 5, 70, 70, 100, 100, 100,
    ]  # fmt: skip


def test_the_tail_of_a_large_vocabulary_keeps_its_share() -> None:
    """Each tail weight is below half a unit in the last place of 1.0: no float32 running sum sees them."""
    vocab_size = 151_936
    weights = torch.full((vocab_size,), 2.0**-26)
    weights[0] = 1.0
    tail = (vocab_size - 1) * 2.0**-26
    for share in (0.0001, 0.25, 0.5, 0.99):
        (column,) = columns_at(weights, [(1 + share * tail) / (1 + tail)])
        assert abs(column - share * vocab_size) <= 2


def test_a_uniform_line_is_cut_evenly() -> None:
    vocab_size = 151_936
    points = [(token + 0.5) / vocab_size for token in range(0, vocab_size, 9973)]
    assert columns_at(torch.ones(vocab_size), points) == list(range(0, vocab_size, 9973))
