"""The dense backend against attention written out in float64."""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backend import Attention
from folovllm.attention.backends.dense import DenseBackend
from folovllm.attention.metadata import AttentionMetadata

CAPACITY = 64


def reference(q, k, v, scale):
    """Softmax attention of one sequence, in float64; query j sits at position len(k) - len(q) + j."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    for head in range(q.shape[1]):
        for j in range(q.shape[0]):
            visible = len(k) - len(q) + j + 1
            scores = (k[:visible, head // group] @ q[j, head]) * scale
            out[j, head] = scores.softmax(0) @ v[:visible, head // group]
    return out


BATCHES = {
    "one prefill": [(9, 0)],
    "one token": [(1, 0)],
    "one decode": [(1, 20)],
    "mixed": [(5, 0), (1, 33), (1, 0), (7, 12)],
    "queries that start in the middle": [(4, 3), (16, 16)],
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (4, 2), (4, 1), (8, 1)])
@pytest.mark.parametrize("head_size", [32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dense_attention_equals_float64(batch, num_heads, num_kv_heads, head_size, dtype):
    torch.manual_seed(0)
    spans = BATCHES[batch]  # (new tokens, tokens already in the cache) of each sequence
    backend = DenseBackend(num_heads, num_kv_heads, head_size, head_size**-0.5)
    cache = torch.full(backend.kv_cache_shape(len(spans), CAPACITY), float("nan"), dtype=dtype)
    blocks = torch.randperm(len(spans))  # sequences need not lie in the cache in their order in the batch
    keys = [torch.randn(new + old, num_kv_heads, head_size).to(dtype) for new, old in spans]
    values = [torch.randn_like(k) for k in keys]
    queries = [torch.randn(new, num_heads, head_size).to(dtype) for new, _ in spans]
    slots = [int(block) * CAPACITY + torch.arange(len(k)) for block, k in zip(blocks, keys, strict=True)]
    for (_, old), k, v, slot in zip(spans, keys, values, slots, strict=True):
        backend.write(k[:old], v[:old], cache, slot[:old])

    fresh = [slice(old, None) for _, old in spans]
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, *(len(q) for q in queries)], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor([len(k) for k in keys], dtype=torch.int32),
        slot_mapping=torch.cat([slot[f] for slot, f in zip(slots, fresh, strict=True)]),
        block_tables=blocks[:, None].int(),
        max_query_len=max(len(q) for q in queries),
        max_seq_len=max(len(k) for k in keys),
    )
    layer = Attention(num_heads, num_kv_heads, head_size)
    layer.bind(backend, cache)
    got = layer(
        torch.cat(queries),
        torch.cat([k[f] for k, f in zip(keys, fresh, strict=True)]),
        torch.cat([v[f] for v, f in zip(values, fresh, strict=True)]),
        metadata,
    )
    want = torch.cat([reference(q, k, v, backend.scale) for q, k, v in zip(queries, keys, values, strict=True)])
    torch.testing.assert_close(got.double(), want, atol=3e-2 if dtype == torch.bfloat16 else 2e-6, rtol=0)


def test_write_touches_its_slots_only():
    backend = DenseBackend(2, 2, 4, 0.5)
    cache = torch.zeros(backend.kv_cache_shape(2, 3))
    k, v = torch.ones(2, 2, 4), torch.full((2, 2, 4), 2.0)
    backend.write(k, v, cache, torch.tensor([1, 5]))  # block 0 offset 1, block 1 offset 2
    assert (cache[0, 0, 1] == 1).all()
    assert (cache[1, 1, 2] == 2).all()
    assert cache.sum() == k.sum() + v.sum()


def test_a_layer_without_a_cache_says_so():
    with pytest.raises(RuntimeError, match="no KV cache"):
        Attention(2, 2, 4)(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), None)
