"""The sampling kernel over a whole vocabulary and a full batch, against torch, on the GPU."""

from __future__ import annotations

import pytest
import torch

from folovllm import SamplingParams
from folovllm.sample.filters import Filters
from folovllm.sample.gumbel import GumbelParams, host_params
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow

pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device

VOCAB, BATCH = 151_936, 256
FILTERS = {
    "nothing": {},
    "top_k": {"top_k": 50},
    "top_k of thousands": {"top_k": 5000},
    "top_p": {"top_p": 0.9},
    "top_p of dozens": {"temperature": 0.6, "top_p": 0.9},
    "min_p": {"min_p": 0.02},
    "Qwen3's own": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "all": {"temperature": 0.8, "top_k": 200, "top_p": 0.95, "min_p": 0.01},
}


def metadata_of(params: SamplingParams, batch: int = BATCH, vocab_size: int = VOCAB) -> SamplingMetadata:
    rows = [SamplingRow(params, [], [], frozenset(), None) for _ in range(batch)]
    return SamplingMetadata.build(rows, vocab_size, torch.device("cuda"))


def filters_of(settings: dict, batch: int = BATCH, vocab_size: int = VOCAB) -> Filters:
    return metadata_of(SamplingParams(**settings), batch, vocab_size).filters


def normal(batch: int, dtype: torch.dtype, vocab_size: int = VOCAB) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return (torch.randn(batch, vocab_size, device="cuda", generator=generator) * 3).to(dtype)


def sizes_by_definition(logits: torch.Tensor, settings: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """(how many tokens stay, how near any token comes to a line without meeting it), in float64, by a sort."""
    values = (logits.double() / settings.get("temperature", 1.0)).sort(dim=-1, descending=True).values
    weights = (values - values[:, :1]).exp()
    rank = torch.arange(VOCAB, device="cuda")
    weights = weights.masked_fill(rank >= settings.get("top_k", VOCAB), 0.0)
    before = weights.cumsum(dim=-1) - weights
    line = settings.get("top_p", 2.0) * weights.sum(dim=-1, keepdim=True)
    least = max(settings.get("min_p", 0.0), 1e-300)
    kept = (before < line) & (weights >= least)
    return kept.sum(dim=-1), torch.minimum((before / line - 1).abs(), (weights / least - 1).abs()).amin(dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FILTERS)
def test_as_many_stay_as_the_definition_says_and_they_are_the_largest(name: str, dtype: torch.dtype) -> None:
    from tests.m4.sampling_kernel_support import kept_tokens

    logits = normal(64, dtype)
    kept = kept_tokens(logits, filters_of(FILTERS[name], 64))
    want, margin = sizes_by_definition(logits, FILTERS[name])
    got = kept.sum(dim=-1)
    # Weights and their sums are in float32, some 1e-6 off: where a token lies nearer, either answer is right.
    assert ((got == want) | ((margin < 1e-5) & ((got - want).abs() < 1e-3 * want))).all()
    smallest_in = logits.float().masked_fill(~kept, torch.inf).amin(dim=-1)
    largest_out = logits.float().masked_fill(kept, -torch.inf).amax(dim=-1)
    assert (smallest_in >= largest_out).all()


@pytest.mark.parametrize("name", FILTERS)
def test_drawn_tokens_are_of_those_that_stay_and_the_same_again(name: str) -> None:
    from folovllm.sample.kernels.sampler import sample
    from tests.m4.sampling_kernel_support import kept_tokens

    logits, filters = normal(BATCH, torch.bfloat16), filters_of(FILTERS[name])
    seeds = torch.full((BATCH,), 2**40 + 7, device="cuda")
    positions = torch.arange(BATCH, device="cuda")
    tokens = sample(logits, filters, seeds, positions)
    assert kept_tokens(logits, filters).gather(1, tokens[:, None]).all()
    assert torch.equal(tokens, sample(logits, filters, seeds, positions))
    assert (tokens != sample(logits, filters, seeds, positions + BATCH)).any()


@pytest.mark.parametrize("batch", [1, BATCH])
def test_each_replay_of_a_graph_keeps_and_draws_the_same(batch: int) -> None:
    """Programs count each other in memory that the replay before has written."""
    from folovllm.sample.kernels.sampler import sample

    logits, filters = normal(batch, torch.bfloat16), filters_of(FILTERS["Qwen3's own"], batch)
    positions = torch.arange(batch, device="cuda")
    kept = torch.empty(batch, VOCAB, dtype=torch.int8, device="cuda")
    want, out = sample(logits, filters, positions, positions), torch.empty_like(positions)
    graph = torch.cuda.CUDAGraph()
    sample(logits, filters, positions, positions, out=out, kept=kept)
    kept_first = kept.clone()
    with torch.cuda.graph(graph):
        sample(logits, filters, positions, positions, out=out, kept=kept)
    for _ in range(50):
        out.fill_(-7)
        kept.fill_(7)
        graph.replay()
        assert torch.equal(out, want)
        assert torch.equal(kept, kept_first)


def test_a_batch_of_mixed_settings_is_sampled_by_the_kernel_without_a_host_sync() -> None:
    logits = normal(BATCH, torch.bfloat16)
    rows = [
        SamplingRow(SamplingParams(**settings), [], [], frozenset(), None)
        for settings in list(FILTERS.values()) * (BATCH // len(FILTERS) + 1)
    ][:BATCH]
    gumbel_params = GumbelParams(torch.from_numpy(host_params(rows, range(BATCH), VOCAB)).to(logits.device))
    offsets = torch.arange(BATCH, device=logits.device)
    gumbel_params.draw(logits, offsets)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        token_ids = gumbel_params.draw(logits, offsets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ((token_ids >= 0) & (token_ids < VOCAB)).all()
