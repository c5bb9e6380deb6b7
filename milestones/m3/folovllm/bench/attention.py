"""Attention in a decode step: reading K and V through block tables against reading them from one contiguous stretch.

Both read the same numbers, the whole context of each sequence once: their floor is the time that the bytes of K and V
take to arrive. "scattered" draws the blocks of every table at random from the pool, "consecutive" lets each sequence's
blocks lie side by side, as they do in a pool that has not been used for long.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from folovllm.attention.backend import AttentionBackend, select_backend
from folovllm.attention.backends.dense import DenseBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.bench.peers import BandwidthProbe
from folovllm.bench.report import Report, Row
from folovllm.bench.shapes import SHAPES
from folovllm.bench.workload import progress_bar, require_at_least

COLUMNS = [
    "dtype", "batch", "context", "blocks", "dense_ms", "paged_ms", "ratio", "paged_gb_per_s", "memory_gb_per_s",
]  # fmt: skip
LAYERS = 4  # in turn, so that none finds its K and V in a cache that a real model's other layers would have filled
REPEATS = 7  # of each contestant in a round


@dataclass
class Reader:
    """A backend with its caches, one per layer, and how to make the metadata of a step."""

    backend: AttentionBackend
    caches: list[torch.Tensor]
    make_metadata: Callable[[], AttentionMetadata]

    def seconds(self, q: torch.Tensor) -> float:
        """For one layer of one decode step, the planning of the step included."""
        start = time.perf_counter()
        metadata = self.make_metadata()
        for cache in self.caches:
            out = self.backend.forward(q, cache, metadata)
        if out.is_cuda:
            torch.cuda.synchronize(out.device)
        return (time.perf_counter() - start) / len(self.caches)


def run(
    *,
    command: str,
    shape: str,
    dtypes: Sequence[str],
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    block_size: int = 16,
    backend: str | None = None,
    device: str | None = None,
    rounds: int = 5,
) -> Report:
    require_at_least(1, block_size=block_size, rounds=rounds, batch_sizes=min(batch_sizes), contexts=min(contexts))
    on = torch.device(device or "cpu")
    paged = select_backend(backend, on)
    cases = [
        (dtype, batch, context, blocks)
        for dtype in dtypes
        for batch in batch_sizes
        for context in contexts
        for blocks in ("consecutive", "scattered")
    ]
    rows: list[Row] = []
    probe = BandwidthProbe(on)
    with progress_bar(len(cases)) as tick:
        for dtype, batch, context, blocks in cases:
            tick(f"{dtype}, {batch} x {context} tokens, {blocks}")
            probe.measure()
            rows.append(_measure(paged, shape, dtype, batch, context, blocks, block_size, on, rounds))
    for row in rows:
        row["memory_gb_per_s"] = probe.bytes_per_s / 1e9
    notes = [
        f"Milliseconds for one layer of one decode step; medians of {rounds} rounds, the two in turn in each.",
        f"ratio: {paged.name} over dense, the median of the rounds' ratios. Blocks of {block_size} tokens.",
        "GB/s: bytes of K and V over the paged time, and what this machine's memory gave when it was asked to sum up.",
    ]
    return Report("attention", f"Decode attention, {shape} shape", command, COLUMNS, rows, notes)


@torch.inference_mode()
def _measure(
    paged: type[AttentionBackend],
    shape: str,
    dtype: str,
    batch: int,
    context: int,
    blocks: str,
    block_size: int,
    device: torch.device,
    rounds: int,
) -> Row:
    readers, q = make_readers(paged, shape, dtype, batch, context, blocks, block_size, device)
    for reader in readers:
        reader.seconds(q)
    dense_ms, paged_ms, ratios = [], [], []
    for _ in range(rounds):
        # Turn by turn, so that whatever else the machine does meets both.
        turns = [[reader.seconds(q) for reader in readers] for _ in range(REPEATS)]
        dense, read = (statistics.median(times) for times in zip(*turns, strict=True))
        dense_ms.append(dense * 1e3)
        paged_ms.append(read * 1e3)
        ratios.append(read / dense)
    num_bytes = batch * context * readers[0].caches[0][:, 0, 0].nbytes
    return {
        "dtype": dtype,
        "batch": batch,
        "context": context,
        "blocks": blocks,
        "dense_ms": statistics.median(dense_ms),
        "paged_ms": statistics.median(paged_ms),
        "ratio": statistics.median(ratios),
        "paged_gb_per_s": num_bytes / statistics.median(paged_ms) / 1e6,
        "memory_gb_per_s": None,
    }


def make_readers(
    paged: type[AttentionBackend],
    shape: str,
    dtype: str,
    batch: int,
    context: int,
    blocks: str,
    block_size: int,
    device: torch.device,
) -> tuple[list[Reader], torch.Tensor]:
    """The contiguous reader and the paged one over the same K and V, and the queries of one decode step."""
    config, kind = SHAPES[shape], getattr(torch, dtype)
    heads, kv_heads, head_size = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    torch.manual_seed(0)
    per_seq = -(-context // block_size)
    ids = torch.arange(1, 1 + batch * per_seq)
    if blocks == "scattered":
        ids = ids[torch.randperm(len(ids))]
    table = ids.view(batch, per_seq)
    dense_backend, paged_backend = (cls(heads, kv_heads, head_size, head_size**-0.5) for cls in (DenseBackend, paged))
    dense_caches, paged_caches = [], []
    for _ in range(LAYERS):
        cache = torch.randn(paged_backend.kv_cache_shape(1 + batch * per_seq, block_size)).to(device, kind)
        paged_caches.append(cache)
        dense_caches.append(cache[:, table.to(device)].flatten(2, 3)[:, :, :context].contiguous())

    def metadata(block_tables: torch.Tensor) -> AttentionMetadata:
        return AttentionMetadata(
            query_start_loc=torch.arange(batch + 1, dtype=torch.int32, device=device),
            seq_lens=torch.full((batch,), context, dtype=torch.int32, device=device),
            slot_mapping=torch.zeros(batch, dtype=torch.int64, device=device),
            block_tables=block_tables.to(device, torch.int32),
            max_query_len=1,
            max_seq_len=context,
        )

    slots = torch.arange(batch)[:, None]
    readers = [
        Reader(dense_backend, dense_caches, lambda: metadata(slots)),
        Reader(paged_backend, paged_caches, lambda: metadata(table)),
    ]
    return readers, torch.randn(batch, heads, head_size, device=device).to(kind)
