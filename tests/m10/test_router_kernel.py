"""The kernels that choose experts and group pairs: the choice of torch's, weights beside a softmax in float64."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from folovllm.layers import moe
from tests.helpers import some

pytest.importorskip("triton")
from folovllm.layers.kernels import experts as kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAN, INF = float("nan"), float("inf")


def awkward_logits(num_experts: int) -> torch.Tensor:
    """[8, num_experts]: random, of three values, all equal, with NaN, some and all -inf, inf, and exponentials of 0."""
    logits = torch.randn(8, num_experts)
    logits[1] = torch.randint(3, (num_experts,)).float()
    logits[2] = 1.5
    logits[3, num_experts // 2] = NAN
    logits[4, ::2], logits[5] = -INF, -INF
    logits[6, 1] = INF
    logits[7, 2:] = -200 * torch.rand(num_experts - 2) - 200
    return logits


def check(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> None:
    found = kernels.route(logits.to(DEVICE), top_k, renormalize=renormalize)
    weights, experts = (part.cpu() for part in found)
    assert (weights.dtype, experts.dtype) == (torch.float32, torch.int64)
    assert torch.equal(experts, moe.route(logits, top_k, renormalize=renormalize).experts)
    right = logits.double().softmax(1).gather(1, experts)
    right = right / right.sum(1, keepdim=True) if renormalize else right
    torch.testing.assert_close(weights, right.float(), rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, which interprets
@pytest.mark.parametrize(
    ("num_experts", "top_k", "renormalize"),
    [(8, 2, True), (60, 4, False), (128, 8, True), *some(list(product([8, 60, 128, 256], range(1, 9), [True, False])))],
)
def test_the_choice_is_torchs_with_ties_and_nan_and_infinities(num_experts: int, top_k: int, renormalize: bool) -> None:
    check(awkward_logits(num_experts), top_k, renormalize=renormalize)


@pytest.mark.exhaustive
def test_so_it_is_for_many_tokens() -> None:
    check(torch.randn(530, 60).round(decimals=1), 4, renormalize=True)


def test_a_tokens_bits_do_not_depend_on_the_batch() -> None:
    logits = torch.randn(12, 60).to(DEVICE)
    together = kernels.route(logits, 5, renormalize=True)
    for token in (0, 5, 11):
        alone = kernels.route(logits[token][None], 5, renormalize=True)
        assert all(torch.equal(one[0], many[token]) for one, many in zip(alone, together, strict=True))


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"), [(0, 4, 2), (1, 128, 8), (8, 60, 4), *some([(530, 8, 2), (700, 256, 8)])]
)
def test_pairs_are_sorted_by_expert_and_then_by_token(num_tokens: int, num_experts: int, top_k: int) -> None:
    """1,060 pairs are more than a program looks at together. An expert that nobody chose ends where it begins."""
    chosen = torch.rand(num_tokens, num_experts).argsort(1)[:, :top_k]
    chosen[chosen == 3] = 1
    found, right = kernels.group(chosen.to(DEVICE), num_experts), moe.group(chosen, num_experts)
    assert (found.order.dtype, found.ends.dtype) == (torch.int64, torch.int64)
    assert torch.equal(found.order.cpu(), right.order)
    assert torch.equal(found.ends.cpu(), right.ends)
