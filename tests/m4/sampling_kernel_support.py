"""Shared by the sampling kernel's tests: filters as the engine hands them over, and what the kernel keeps."""

from __future__ import annotations

import torch

from folovllm.sample.filters import Filters
from folovllm.sample.kernels import sampler as kernel
from tests.m1 import sampling_reference

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
FILTERS = {"nothing": {}} | sampling_reference.FILTERS


def as_filters(rows: list[dict], vocab_size: int) -> Filters:
    """As SamplingMetadata makes them of SamplingParams."""

    def column(name: str, off: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        values = [row.get(name, off) for row in rows]
        return torch.tensor(values, dtype=dtype, device=DEVICE).unsqueeze(-1)

    return Filters(
        column("temperature", 1.0), column("top_k", vocab_size, torch.int64),
        column("top_p", torch.inf), column("min_p", 0.0),
    )  # fmt: skip


def kept(logits: torch.Tensor, *rows: dict) -> list[list[int]]:
    """The tokens that the kernel would draw from, for each row of `logits` [b, vocab]."""
    mask = kept_tokens(logits.to(DEVICE), as_filters(list(rows), logits.shape[-1]))
    return [row.nonzero().flatten().tolist() for row in mask]


def kept_tokens(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Which tokens may be drawn, bool [b, vocab]: what the kernel decides before it draws."""
    kept = torch.empty(logits.shape, dtype=torch.int8, device=logits.device)
    nothing = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    kernel.sample(logits, filters, nothing, nothing, kept=kept)
    return kept.bool()


def normal(*shape: int, scale: float = 1.5, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
