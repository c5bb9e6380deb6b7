"""The sampling kernel keeps what the definition keeps. Who is drawn: test_sampling_kernel_draws.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from folovllm.sample.kernels import cut, threshold
from folovllm.sample.kernels import sampler as kernel
from tests.m1.sampling_reference import distribution
from tests.m4.sampling_kernel_support import CUDA, FILTERS, kept, normal

pytestmark = pytest.mark.slow
pytest.importorskip("triton")


def kept_by_definition(logits: torch.Tensor, **filters) -> list[int]:
    return np.flatnonzero(distribution(logits.tolist(), **filters)).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_filter_keeps_what_the_definition_keeps(dtype: torch.dtype) -> None:
    """Rows under different settings, in one launch. Half of what 16 bits hold of 300 logits are ties."""
    settings = list(FILTERS.values())
    logits = normal(len(settings), 300).to(dtype)
    want = [kept_by_definition(row, **filters) for row, filters in zip(logits, settings, strict=True)]
    assert kept(logits, *settings) == want


def test_a_row_of_several_tiles_keeps_what_the_definition_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 128)
    monkeypatch.setattr(kernel, "MOST", 2)
    settings = [FILTERS["top_k"], FILTERS["top_p"], FILTERS["all"], {"top_k": 1000, "top_p": 0.97}]
    logits = normal(4, 600).bfloat16()
    want = [kept_by_definition(row, **filters) for row, filters in zip(logits, settings, strict=True)]
    assert kept(logits, *settings) == want


class CountedFunction:
    """Stands for a function of the kernel and counts its calls, which the interpreter makes as Python does."""

    def __init__(self, function: Callable) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


@pytest.mark.skipif(CUDA, reason="counts calls in the interpreter")
@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 12), (torch.float32, 16)], ids=str)
def test_a_whole_vocabulary_is_cut_exactly_in_a_few_passes(
    dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both thresholds, in as many passes as the docstrings say. One tile, or the interpreter would take a minute."""
    monkeypatch.setattr(kernel, "BLOCK", 2**18)
    monkeypatch.setattr(kernel, "MOST", 2)
    counted = CountedFunction(threshold.count_and_mass)
    monkeypatch.setattr(threshold, "count_and_mass", counted)
    monkeypatch.setattr(cut, "count_and_mass", counted)
    logits = normal(1, 151_936, scale=3.0).to(dtype)
    (got,) = kept(logits, {"temperature": 0.8, "top_k": 5000, "top_p": 0.95, "min_p": 1e-4})
    values, order = (logits[0].double() / 0.8).sort(descending=True, stable=True)
    weights = (values[:5000] - values[0]).exp()
    stay = (weights.cumsum(0) - weights < 0.95 * weights.sum()) & (weights >= 1e-4)
    assert got == sorted(order[:5000][stay].tolist())
    assert 100 < len(got) < 5000
    assert counted.calls + 2 <= most  # and the first pass and the last


@pytest.mark.parametrize("top_k", [1, 2, 39, 40])
def test_top_k_keeps_exactly_k_where_all_logits_are_equal(top_k: int) -> None:
    assert kept(torch.full((1, 40), 0.5), {"top_k": top_k}) == [list(range(top_k))]


def test_ties_that_top_k_cuts_are_not_those_at_the_bound_of_min_p() -> None:
    """Top-k leaves one of three 1.0; min_p's bound is 2.0, and both that reach it stay."""
    assert kept(torch.tensor([[2.0, 1.0, 2.0, 1.0, 1.0]]), {"top_k": 3, "min_p": 1.0}) == [[0, 2]]


def test_ties_that_top_k_leaves_out_add_nothing_to_the_mass_of_top_p() -> None:
    """Four of six equal tokens stay, of a quarter each: half of them reach 0.5, not half of six."""
    assert kept(torch.zeros(1, 6), {"top_k": 4, "top_p": 0.5}) == [[0, 1]]


def test_equal_tokens_are_cut_where_the_line_is_crossed() -> None:
    assert kept(torch.zeros(1, 400), {"top_p": 0.75}) == [list(range(300))]
    two_above = torch.zeros(1, 10)
    two_above[0, [4, 8]] = 1.0  # 2e + 8 in all, a token of the eight is 0.0745: 2e is 0.405, and two more make 0.554
    assert kept(two_above, {"top_p": 0.5}) == [[0, 1, 4, 8]]


def test_the_token_that_crosses_the_line_is_in() -> None:
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    assert kept(probabilities.log(), {"top_p": 0.35}) == [[3]]
    assert kept(probabilities.log(), {"top_p": 0.41}) == [[2, 3]]
    assert kept(probabilities.log(), {"top_p": 0.95}) == [[0, 1, 2, 3]]


def test_the_likeliest_token_stays_whatever_the_filters_say() -> None:
    logits = normal(1, 50)
    for filters in ({"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1}):
        assert kept(logits, filters) == [[int(logits.argmax())]]


def test_excluded_tokens_are_no_ones_company() -> None:
    """-inf, as masks leave it: top-k of more than the rest keeps the rest."""
    logits = torch.full((2, 40), -torch.inf)
    logits[:, [3, 20, 21]] = torch.tensor([1.0, -2.0, 1.0])
    assert kept(logits, {"top_k": 10}, {"top_k": 10, "top_p": 0.9}) == [[3, 20, 21], [3, 21]]


def test_negative_zero_is_zero() -> None:
    logits = torch.tensor([[-0.0, 0.0, -0.0, -1.0]])
    assert kept(logits, {"top_k": 2}) == [[0, 1]]
    assert kept(logits.bfloat16(), {"top_k": 2}) == [[0, 1]]


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -1e4, 19.9999], ids=["mask", "wide", "narrow"])
def test_the_search_ends_for_the_strangest_ranges(low: float) -> None:
    """A mask that writes the smallest number there is; logits that differ in their last bits only. Each comes twice."""
    logits = torch.linspace(low, 20.0, 64).repeat(1, 2)
    falling = logits[0].sort(descending=True, stable=True).indices.tolist()
    assert kept(logits.expand(2, -1), {"top_k": 3}, {"top_k": 20}) == [sorted(falling[:3]), sorted(falling[:20])]
