"""What makes sampling fast on a CPU, where a vocabulary is large: searches in two stages, which find what one finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm import SamplingParams
from folovllm.sample.filters import Filters, _cut_at_line, full_weights, keep_prefix, top_k
from tests.m1.sampling_reference import CPU, make_row
from tests.m1.test_sampler import logits_of
from tests.m1.test_sampling_distribution import normal_logits
from tests.m2.test_sampling_groups import sample


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), vocab_size=st.integers(1, 60_000), k=st.integers(1, 1024), coarse=st.booleans())
def test_two_stage_top_k_finds_what_a_sort_finds(seed: int, vocab_size: int, k: int, coarse: bool) -> None:
    logits = normal_logits(vocab_size, 3.0, seed).repeat(2, 1)
    if coarse:  # many equal logits, as bfloat16 has
        logits = logits.round()
    k = min(k, vocab_size)
    values, ids = top_k(logits, k)
    assert torch.equal(values, logits.sort(dim=-1, descending=True).values[:, :k])
    assert torch.equal(logits.gather(1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())


def test_a_large_batch_split_into_groups_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("folovllm.sample.groups.MAX_GROUP_LOGITS", 200)
    logits = logits_of(23, 100)
    for params in (SamplingParams(top_k=1), SamplingParams(min_p=1.0), SamplingParams(temperature=0, min_tokens=1)):
        output = sample(logits, [make_row(params)] * 23)
        assert output.token_ids.tolist() == logits.argmax(dim=-1).tolist()


def kept_at_the_line(logits: torch.Tensor, top_p: list[float], temperature: float = 1.0) -> list[list[int]]:
    rows = len(logits)
    shares = torch.tensor(top_p, dtype=torch.float64).unsqueeze(-1)
    weights = full_weights(logits, torch.full((rows, 1), temperature, dtype=torch.float64))
    _cut_at_line(weights, shares)
    return [row.nonzero().flatten().tolist() for row in weights]


def test_the_token_that_crosses_the_line_is_kept_by_hand() -> None:
    logits = torch.tensor([[0.4, 0.25, 0.15, 0.1, 0.06, 0.04]]).log()
    for top_p, count in ((0.3, 1), (0.41, 2), (0.75, 3), (0.79, 3), (0.81, 4), (0.97, 6)):
        assert kept_at_the_line(logits, [top_p]) == [list(range(count))]


def test_of_equal_tokens_the_first_ones_are_kept() -> None:
    assert kept_at_the_line(torch.zeros(3, 8), [0.1, 0.5, 0.95]) == [[0], [0, 1, 2, 3], list(range(8))]


@pytest.mark.parametrize("seed", range(20))
def test_bins_keep_as_many_as_a_sort_keeps(seed: int) -> None:
    """Logits in bfloat16, so that many are equal; some rows flat, some steep, some masked."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, 700, generator=generator) * torch.tensor([0.01, 0.5, 1, 3, 10, 30]).unsqueeze(-1)
    logits = logits.bfloat16()
    logits[seed % 6, ::2] = -torch.inf
    top_p = torch.rand(6, generator=generator).mul(0.999).tolist()
    params = [SamplingParams(top_p=p, temperature=0.6) for p in top_p]
    sorted_ones = keep_prefix(logits.float(), Filters.of(params, 700, CPU), 700)
    assert [len(kept) for kept in kept_at_the_line(logits, top_p, 0.6)] == sorted_ones.keep.flatten().tolist()
