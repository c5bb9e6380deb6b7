"""Our own CPU kernels on the paged cache, csrc/attention.cpp: storing keys and values, and decode attention.

vLLM: csrc/cpu/cpu_attn.cpp
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from folovllm.utils.cpu_kernels import library

POINTER, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
# (dtype of the queries, dtype of the cache)
DTYPES = ((torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16))
HEAD_SIZE_STEP = 16  # what a register holds
SIGNATURES = {
    "store_kv": [POINTER] * 2 + [INT] * 2 + [POINTER] * 3 + [INT] * 2,
    "decode": [POINTER, INT] + [POINTER] * 6 + [INT] * 6 + [FLOAT, POINTER],
}


@cache
def _kernel(name: str, dtype: torch.dtype, cache_dtype: torch.dtype) -> Any:
    function = getattr(library(), f"{name}_{NAMES[dtype]}_{NAMES[cache_dtype]}")
    function.argtypes, function.restype = SIGNATURES[name], None
    return function


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
    _, _, block_size, num_kv_heads, head_size = kv_cache.shape
    _kernel("decode", q.dtype, kv_cache.dtype)(
        q.data_ptr(),
        q.stride(0),
        kv_cache[0].data_ptr(),
        kv_cache[1].data_ptr(),
        queries.data_ptr(),
        seqs.data_ptr(),
        seq_lens.data_ptr(),
        block_tables.data_ptr(),
        block_tables.stride(0),
        len(queries),
        block_size,
        q.shape[1],
        num_kv_heads,
        head_size,
        scale,
        out.data_ptr(),
    )
