"""One table of batches and shapes for every attention backend, and attention written out in float64 to hold it against.

A case is a cache full of NaN in which the older tokens of each sequence stand, in blocks scattered at random, and
the new tokens' q, k and v as a model hands them over: views of one fused projection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from folovllm.attention.backend import Attention, AttentionBackend
from folovllm.attention.metadata import AttentionMetadata

TOLERANCE = {torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}

Spans = list[tuple[int, int]]
"""(new tokens, tokens in the cache already) of each sequence."""


class Shape(NamedTuple):
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype

    def __str__(self) -> str:
        *numbers, dtype = self
        return "-".join([*map(str, numbers), str(dtype).removeprefix("torch.")])


# Each group size from 1 to 8, and each head size and each block size with each dtype at least once.
SHAPES = [
    Shape(2, 2, 32, 16, torch.float32),
    Shape(4, 2, 64, 32, torch.float32),
    Shape(4, 1, 128, 64, torch.float32),
    Shape(8, 1, 32, 256, torch.float32),
    Shape(3, 1, 64, 256, torch.bfloat16),
    Shape(4, 2, 128, 16, torch.bfloat16),
    Shape(5, 1, 32, 32, torch.bfloat16),
    Shape(8, 1, 64, 64, torch.bfloat16),
    Shape(2, 2, 128, 32, torch.float16),
    Shape(6, 1, 32, 64, torch.float16),
    Shape(7, 1, 64, 16, torch.float16),
    Shape(4, 1, 32, 256, torch.float16),
]
BATCHES: dict[str, Callable[[int], Spans]] = {
    "prefill": lambda bs: [(9, 0), (bs // 2 + 3, 0)],
    "one sequence of one token": lambda bs: [(1, 0)],
    "decode": lambda bs: [(1, 20), (1, 0), (1, bs + 3)],
    "decodes, then prefills": lambda bs: [(1, 33), (1, 0), (1, bs), (5, 0), (7, 12)],
    "in any order": lambda bs: [(5, 0), (1, 33), (1, 0), (7, 12), (1, 2)],
    "context in the cache": lambda bs: [(4, 3), (16, 16), (2, bs)],
    "lengths at the edge of a block": lambda bs: [
        *((1, length - 1) for length in (bs - 1, bs, bs + 1)),
        *((2, length - 2) for length in (bs - 1, bs, bs + 1)),
    ],
}


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """One sequence in float64: q [queries, heads, size] at the last positions of k, v [keys, KV heads, size]."""
    q, k, v = q.double(), k.double(), v.double()
    per_kv_head = q.shape[1] // k.shape[1]
    positions = torch.arange(len(k) - len(q), len(k), device=q.device)
    hidden = torch.arange(len(k), device=q.device)[None] > positions[:, None]
    out = torch.empty_like(q)
    for head in range(q.shape[1]):
        scores = scale * (q[:, head] @ k[:, head // per_kv_head].T)
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=1)
        out[:, head] = weights @ v[:, head // per_kv_head]
    return out


@dataclass
class Case:
    layer: Attention
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    metadata: AttentionMetadata
    want: torch.Tensor

    def run(self) -> torch.Tensor:
        """What a model's layer does: write k and v, then read."""
        return self.layer(self.q, self.k, self.v, self.metadata)

    def check(self) -> None:
        assert self.layer.kv_cache is not None
        tolerance = TOLERANCE[self.layer.kv_cache.dtype]
        out = self.run()
        assert out.dtype == self.q.dtype
        torch.testing.assert_close(out.double(), self.want, atol=tolerance, rtol=0)


def make_case(
    backend: type[AttentionBackend],
    spans: Spans,
    shape: Shape = SHAPES[0],
    *,
    tables: list[list[int]] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    query_dtype: torch.dtype | None = None,
) -> Case:
    """Everything is drawn and computed on `device`: at a model's sizes the reference would take a CPU minutes.

    tables: each sequence's blocks, scattered if None.
    """
    generator = torch.Generator(device).manual_seed(seed)
    heads, kv_heads, head_size, block_size, dtype = shape
    lens = [new + old for new, old in spans]
    if not backend.reads_block_tables:
        block_size = max(lens) + 2  # a sequence must lie in a single block
    counts = [-(-length // block_size) for length in lens]
    num_blocks = sum(counts) + 3 if tables is None else max(map(max, tables)) + 1
    order = torch.randperm(num_blocks - 1, generator=generator, device=device)
    owned = (order + 1)[: sum(counts)].split(counts)  # 0 is the null block
    if tables is not None:
        owned = tuple(torch.tensor(blocks, device=device) for blocks in tables)

    layer = Attention(heads, kv_heads, head_size)
    instance = backend(heads, kv_heads, head_size, layer.scale)
    shape_of_all = instance.kv_cache_shape(num_blocks, block_size)
    cache = torch.full(shape_of_all, float("nan"), dtype=dtype, device=device)
    queries, keys, values, slots = [], [], [], []
    for (new, _), length, blocks in zip(spans, lens, owned, strict=True):
        q = torch.randn(new, heads, head_size, generator=generator, device=device)
        k, v = torch.randn(2, length, kv_heads, head_size, generator=generator, device=device)
        queries.append(q.to(query_dtype or dtype))
        keys.append(k.to(dtype))
        values.append(v.to(dtype))
        slots.append((blocks[:, None] * block_size + torch.arange(block_size, device=device)).flatten()[:length])
    for (_, old), k, v, slot in zip(spans, keys, values, slots, strict=True):
        for kept, rows in zip(cache.view(2, -1, kv_heads, head_size), (k, v), strict=True):
            kept[slot[:old]] = rows[:old]

    def fresh(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([row[old:] for (_, old), row in zip(spans, rows, strict=True)])

    projection = torch.cat([torch.cat(queries).float(), fresh(keys).float(), fresh(values).float()], dim=1)
    q, k, v = projection.to(query_dtype or dtype).split([heads, kv_heads, kv_heads], dim=1)
    padded = torch.zeros(len(spans), max(counts) + 1, dtype=torch.int32, device=device)  # with the null block
    for table, blocks in zip(padded, owned, strict=True):
        table[: len(blocks)] = blocks
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, *(new for new, _ in spans)]).cumsum(0).int().to(device),
        seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
        slot_mapping=fresh(slots),
        block_tables=padded,
        max_query_len=max(new for new, _ in spans),
        max_seq_len=max(lens),
    )
    layer.bind(instance, cache)
    want = torch.cat([reference(*qkv, layer.scale) for qkv in zip(queries, keys, values, strict=True)])
    return Case(layer, q, k, v, metadata, want)
