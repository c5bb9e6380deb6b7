"""No attention kernel is compiled while requests are served: all there are have been warmed up."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.kernels import paged_decode, paged_prefill
from folovllm.attention.metadata import AttentionMetadata
from tests.m4.compile_keys import at_alignment, record_keys

KERNELS = {
    "_paged_decode": paged_decode,
    "_paged_prefill": paged_prefill,
}
BLOCK_SIZE = 16


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Any, ...]]:
    return record_keys(monkeypatch, KERNELS)


def random_step(rng: random.Random, backend: TritonBackend, cache: torch.Tensor) -> None:
    """Decodes in front, prompts or parts of them behind; tables as wide as the longest needs."""
    decodes, prefills = rng.choice([(0, 1), (1, 0), (7, 0), (150, 0), (3, 2), (5, 1), (64, 4), (1, 1)])
    nums = [1] * decodes + [rng.choice([1, 3, 8, 31, 33, 700]) for _ in range(prefills)]
    starts = torch.tensor([0, *nums]).cumsum(0).int()
    longest = rng.choice([20, 100, 3000])
    fused = torch.zeros(sum(nums), backend.num_heads + 2 * backend.num_kv_heads, backend.head_size, dtype=cache.dtype)
    q, k, v = fused.split([backend.num_heads, backend.num_kv_heads, backend.num_kv_heads], dim=1)
    metadata = AttentionMetadata(
        query_start_loc=starts,
        seq_lens=torch.full((len(nums),), longest, dtype=torch.int32),
        slot_mapping=torch.zeros(len(q), dtype=torch.int64),
        block_tables=torch.zeros(len(nums), -(-longest // BLOCK_SIZE), dtype=torch.int32),
        max_query_len=max(nums),
        max_seq_len=longest,
        num_decodes=decodes,
        decode_order=torch.arange(decodes if max(nums) > 1 else len(nums), dtype=torch.int32),
    )
    backend.write(k, v, cache, metadata.slot_mapping)
    backend.forward(q, cache, metadata)


@pytest.mark.parametrize(("heads", "kv_heads", "head_size"), [(16, 8, 128), (9, 3, 64), (32, 1, 80)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_nothing_is_compiled_after_the_warm_up(
    keys: set[tuple[Any, ...]], heads: int, kv_heads: int, head_size: int, dtype: torch.dtype
) -> None:
    backend = TritonBackend(heads, kv_heads, head_size, head_size**-0.5)
    cache = torch.zeros(backend.kv_cache_shape(2, BLOCK_SIZE), dtype=dtype)
    backend.warm_up(cache)
    warm = set(keys)
    assert {name for name, *_ in warm} == set(KERNELS)
    assert len(warm) <= 5  # 2 tiles of prompts; decodes whole, and added up from few splits and from many
    rng = random.Random(0)
    for _ in range(200):
        random_step(rng, backend, cache)
    assert keys == warm


def launch_prefill(offset: int) -> None:
    """With tables, starts and lengths that begin `offset` numbers behind an aligned address."""
    tables, starts, lens = torch.zeros(2, 3).int(), torch.tensor([0, 4, 9]).int(), torch.tensor([4, 5]).int()
    q, cache = torch.zeros(9, 4, 16), torch.zeros(2, 4, 16, 2, 16)
    tables, starts, lens = (at_alignment(each, offset) for each in (tables, starts, lens))
    paged_prefill.paged_prefill(q, *cache.unbind(0), tables, starts, lens, 5, 1.0)


def test_a_prefill_behind_any_number_of_decodes_is_one_kernel(keys: set[tuple[Any, ...]]) -> None:
    for offset in range(8):
        launch_prefill(offset)
    assert len(keys) == 1
