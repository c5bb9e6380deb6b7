"""What sampling means, from the definitions: plain loops, float64, no code of folovllm.sample in them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy import stats

from folovllm import SamplingParams
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow, make_generator
from folovllm.sample.sampler import Sampler

CPU = torch.device("cpu")
FILTERS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.6},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "top_k+top_p": {"top_k": 12, "top_p": 0.85},
    "top_k+min_p": {"top_k": 9, "min_p": 0.06},
    "top_p+min_p": {"top_p": 0.9, "min_p": 0.05},
    "all": {"temperature": 1.3, "top_k": 15, "top_p": 0.9, "min_p": 0.08},
}
"""SamplingParams of each filter, and of filters together."""


def softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(x - largest) for x in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]


def distribution(
    logits: Sequence[float], temperature: float = 1.0, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """Temperature, then top-k, then top-p among what that left, then min-p among what that left."""
    probs = softmax([x / temperature for x in logits])
    falling = sorted(range(len(probs)), key=lambda token: -probs[token])
    if top_k != -1:
        falling = falling[:top_k]
    if top_p < 1.0:
        total, reached, nucleus = math.fsum(probs[t] for t in falling), 0.0, []
        for token in falling:
            nucleus.append(token)
            reached += probs[token] / total
            if reached >= top_p:
                break
        falling = nucleus
    kept = [t for t in falling if probs[t] >= min_p * probs[falling[0]]]
    out = np.zeros(len(probs))
    out[kept] = [probs[t] for t in kept]
    return out / out.sum()


def make_row(params: SamplingParams, prompt: Sequence[int] = (), output: Sequence[int] = (), **more) -> SamplingRow:
    eos = frozenset(more.pop("eos", ()))
    return SamplingRow(params, list(prompt), list(output), eos, make_generator(params, 0, CPU), **more)


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], sampler: Sampler | None = None):
    """Rows that are all sampled in one way."""
    metadata = SamplingMetadata.build(rows, logits.shape[-1], CPU)
    return (sampler or Sampler())(logits, metadata)


def draw_many(logits: torch.Tensor, params: SamplingParams, num_draws: int, draw: str = "auto") -> np.ndarray:
    """How often each token comes in a batch of `num_draws` unseeded rows with the same logits [vocab]."""
    torch.manual_seed(1234)
    row = make_row(params)
    counts = np.zeros(len(logits), np.int64)
    for first in range(0, num_draws, 1000):
        size = min(1000, num_draws - first)
        output = sample(logits.expand(size, -1), [row] * size, Sampler(draw))
        counts += np.bincount(output.token_ids.numpy(), minlength=len(logits))
    return counts


def assert_fits(counts: np.ndarray, expected: np.ndarray) -> None:
    """Chi-square at p > 1e-4; what has probability zero never came. Cells that expect < 5 are pooled."""
    assert counts[expected == 0].sum() == 0, "an excluded token was drawn"
    wanted = expected * counts.sum()
    small = wanted < 5
    observed, wanted = (np.append(x[~small], x[small].sum()) for x in (counts, wanted))
    keep = wanted > 0
    assert keep.sum() > 1, "nothing to test: one cell"
    assert stats.chisquare(observed[keep], wanted[keep]).pvalue > 1e-4


def distribution_of(logits: torch.Tensor, row: SamplingRow) -> np.ndarray:
    """The distribution that was drawn from, read from processed logprobs over the whole vocabulary."""
    output = sample(logits.unsqueeze(0), [row])
    assert output.logprobs is not None
    out = np.zeros(len(logits))
    out[output.logprobs.token_ids[0, 1:].numpy()] = output.logprobs.logprobs[0, 1:].double().exp().numpy()
    return out
