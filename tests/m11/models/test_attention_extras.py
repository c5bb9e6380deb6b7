"""Windows, a soft-cap and sinks, beside the plain formula in float64: one query after the other, no mask, no blocks."""

from __future__ import annotations

import math

import pytest
import torch

from folovllm.attention.backend import Attention, AttentionExtras
from folovllm.attention.backends import paged_torch
from folovllm.attention.backends.cpu import CPUBackend
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 4
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
EXTRAS = {
    "window": AttentionExtras(sliding_window=6),
    "window of one": AttentionExtras(sliding_window=1),
    "soft-cap": AttentionExtras(logits_soft_cap=2.0),
    "sinks": AttentionExtras(sinks=SINKS),
    "all": AttentionExtras(sliding_window=5, logits_soft_cap=3.0, sinks=SINKS),
    "none": AttentionExtras(),
}
SPANS = [(1, 20), (7, 9), (11, 0), (1, 0)]  # (new tokens, tokens already in the cache) of each sequence
SCALE = 0.4


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extras: AttentionExtras) -> torch.Tensor:
    """q [new, heads, size] at the last positions of k, v [length, kv_heads, size], in Python's loops."""
    out = torch.empty_like(q)
    for number in range(len(q)):
        position = len(k) - len(q) + number
        first = 0 if extras.sliding_window is None else max(0, position + 1 - extras.sliding_window)
        for head in range(HEADS):
            of_head = head // (HEADS // KV_HEADS)
            scores = [float(q[number, head] @ k[key, of_head]) * SCALE for key in range(first, position + 1)]
            if (cap := extras.logits_soft_cap) is not None:
                scores = [cap * math.tanh(score / cap) for score in scores]
            weights = [math.exp(score) for score in scores]
            total = sum(weights) + (0.0 if extras.sinks is None else math.exp(float(extras.sinks[head])))
            values = v[first : position + 1, of_head]
            out[number, head] = sum(w / total * value for w, value in zip(weights, values, strict=True))
    return out


@pytest.mark.parametrize("backend", [PagedTorchBackend, CPUBackend])
@pytest.mark.parametrize("name", EXTRAS)
def test_extras_are_what_they_are_called(name, backend, monkeypatch):
    """In scattered blocks, as decodes, as chunks behind other tokens and as whole prompts, in turns of 4 queries. What
    no query sees holds NaN: blocks behind a window may be gone."""
    if backend.unavailable_reason(torch.device("cpu")) is not None:
        pytest.skip("no compiled kernels here")
    monkeypatch.setattr(paged_torch, "MASKED_QUERIES", 4)
    generator = torch.Generator().manual_seed(3)
    layer = Attention(HEADS, KV_HEADS, SIZE, SCALE, EXTRAS[name])
    tables = torch.randperm(30, generator=generator)[:24].view(4, 6).to(torch.int32) + 1
    cache = torch.full((2, 31, BLOCK, KV_HEADS, SIZE), torch.nan)
    layer.bind(layer.make_backend(backend), cache)
    window, wanted, queries, slots = EXTRAS[name].sliding_window, [], [], []
    keys, values = [], []
    for table, (new, old) in zip(tables, SPANS, strict=True):
        q, k, v = (torch.randn(n, h, SIZE, generator=generator) for n, h in (
            (new, HEADS), (new + old, KV_HEADS), (new + old, KV_HEADS)))  # fmt: skip
        wanted.append(by_hand(q.double(), k.double(), v.double(), EXTRAS[name]))
        of_seq = torch.tensor([int(table[p // BLOCK]) * BLOCK + p % BLOCK for p in range(new + old)])
        seen = 0 if window is None else max(0, old + 1 - window)
        for part, x in enumerate((k, v)):
            cache[part].view(-1, KV_HEADS, SIZE)[of_seq[seen:old]] = x[seen:old]
        queries.append(q)
        keys.append(k[old:])
        values.append(v[old:])
        slots.append(of_seq[old:])
    lens = torch.tensor([new + old for new, old in SPANS], dtype=torch.int32)
    starts = torch.tensor([0, *(new for new, _ in SPANS)]).cumsum(0, dtype=torch.int32)
    metadata = AttentionMetadata(starts, lens, torch.cat(slots), tables, max(new for new, _ in SPANS), int(lens.max()))
    got = layer(torch.cat(queries), torch.cat(keys), torch.cat(values), metadata)
    torch.testing.assert_close(got.double(), torch.cat(wanted), atol=1e-5, rtol=1e-5)
