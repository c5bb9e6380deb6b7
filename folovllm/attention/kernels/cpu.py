"""Our own CPU kernels on the paged cache: storing keys and values, attention of one query of a sequence
(csrc/attention.cpp) and of many (csrc/prefill.cpp).

vLLM: csrc/cpu/cpu_attn.cpp
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from folovllm.utils.cpu_kernels import DTYPE_NAMES, FLOAT, INT, POINTER, function

# (dtype of the queries, dtype of the cache)
DTYPES = ((torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16))
HEAD_SIZE_STEP = 16  # what a register holds
SIGNATURES: dict[str, list[Any]] = {
    "store_kv": [POINTER] * 2 + [INT] * 2 + [POINTER] * 3 + [INT] * 2,
    "decode": [POINTER, INT] + [POINTER] * 6 + [INT] * 6 + [FLOAT, POINTER],
    "prefill": [POINTER, INT] + [POINTER] * 6 + [INT] * 6 + [FLOAT, POINTER],
}


@cache
def _kernel(name: str, dtype: torch.dtype, cache_dtype: torch.dtype) -> Any:
    return function(f"{name}_{DTYPE_NAMES[dtype]}_{DTYPE_NAMES[cache_dtype]}", SIGNATURES[name])


def store_kv(k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write k and v [num_tokens, num_kv_heads, head_size] to their slots, [num_tokens] int64, in the cache's dtype."""
    _kernel("store_kv", k.dtype, kv_cache.dtype)(
        k.data_ptr(),
        v.data_ptr(),
        k.stride(0),
        v.stride(0),
        kv_cache[0].data_ptr(),
        kv_cache[1].data_ptr(),
        slots.data_ptr(),
        len(k),
        k.shape[1] * k.shape[2],
    )


def decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    queries: torch.Tensor,
    seqs: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Attention of sequences that have one query each.

    Args:
        q: [num_tokens, num_heads, head_size], of which `queries` [num_decodes] int64 are computed.
        seqs: [num_decodes] int64, whose queries they are: rows of `seq_lens` [num_seqs] and `block_tables`
            [num_seqs, max_blocks], both int32 and contiguous.
        out: like q and contiguous; its rows `queries` are written.
    """
    _attend("decode", q, kv_cache, queries, seqs, seq_lens, block_tables, scale, out)


def prefill(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    spans: torch.Tensor,
    seqs: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Causal attention of sequences that have any number of queries, the last positions of each.

    A row's bits depend on its sequence up to there alone, not on how many other queries come with it.

    Args:
        q: [num_tokens, num_heads, head_size], of which the rows from spans[i, 0] up to spans[i, 1] are the queries of
            sequence seqs[i]; `spans` [num_prefills, 2] and `seqs` [num_prefills] are int64 and contiguous.
        seq_lens, block_tables, out: as decode() takes them.
    """
    _attend("prefill", q, kv_cache, spans, seqs, seq_lens, block_tables, scale, out)


def _attend(
    name: str,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    queries: torch.Tensor,
    seqs: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    _, _, block_size, num_kv_heads, head_size = kv_cache.shape
    _kernel(name, q.dtype, kv_cache.dtype)(
        q.data_ptr(),
        q.stride(0),
        kv_cache[0].data_ptr(),
        kv_cache[1].data_ptr(),
        queries.data_ptr(),
        seqs.data_ptr(),
        seq_lens.data_ptr(),
        block_tables.data_ptr(),
        block_tables.stride(0),
        len(seqs),
        block_size,
        q.shape[1],
        num_kv_heads,
        head_size,
        scale,
        out.data_ptr(),
    )
