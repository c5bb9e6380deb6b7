"""What flash_attn hands to its library: stand-ins with the library's signatures compute it here.

The library itself is asked in tests/gpu.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from folovllm.attention.backend import get_backend_class
from tests.m4.attention_reference import Shape, Spans, make_case, reference

BATCHES: list[Spans] = [
    [(1, 33), (1, 0), (5, 0), (7, 12)],
    [(5, 3), (1, 2)],
    [(9, 0)],
    [(1, 5), (1, 300)],
]


def attend(q: Tensor, starts: Tensor, caches: tuple[Tensor, Tensor], tables: list[Tensor], lens: list[int],
           scale: float) -> Tensor:  # fmt: skip
    """Over blocks [num_blocks, block_size, num_kv_heads, head_size]: one sequence after the other."""
    assert starts[0] == 0
    assert starts[-1] == len(q)
    assert len(starts) - 1 == len(tables) == len(lens)
    outs = []
    for start, end, table, length in zip(starts[:-1], starts[1:], tables, lens, strict=True):
        k, v = (cache[table.long()].flatten(0, 1)[:length] for cache in caches)
        outs.append(reference(q[start:end], k, v, scale))
    return torch.cat(outs).to(q.dtype)


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_seqlens: Tensor, block_table: Tensor, softmax_scale: float,
    causal: bool,
) -> Tensor:  # fmt: skip
    assert causal
    assert q.shape[1] == 1
    starts = torch.arange(len(q) + 1)
    caches = (k_cache, v_cache)
    return attend(q[:, 0], starts, caches, list(block_table), cache_seqlens.tolist(), softmax_scale)[:, None]


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    softmax_scale: float, causal: bool, block_table: Tensor,
) -> Tensor:  # fmt: skip
    assert causal
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert max_seqlen_q >= cu_seqlens_q.diff().max()
    assert max_seqlen_k >= cu_seqlens_k.diff().max()
    return attend(q, cu_seqlens_q, (k, v), list(block_table), cu_seqlens_k.diff().tolist(), softmax_scale)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {"flash_attn_with_kvcache": flash_attn_with_kvcache, "flash_attn_varlen_func": flash_attn_varlen_func}
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(**functions))


@pytest.mark.parametrize("query_dtype", [None, torch.float32])
@pytest.mark.parametrize("spans", BATCHES, ids=str)
def test_each_sequence_reaches_the_library_with_its_own_keys(spans: Spans, query_dtype: torch.dtype | None) -> None:
    shape = Shape(4, 2, 16, 256, torch.bfloat16)
    make_case(get_backend_class("flash_attn"), spans, shape, query_dtype=query_dtype).check()


def test_float32_is_refused_before_a_library_is_asked() -> None:
    case = make_case(get_backend_class("flash_attn"), BATCHES[0], Shape(4, 2, 16, 256, torch.float32))
    with pytest.raises(ValueError, match="dtype must be float16 or bfloat16 for attention_backend 'flash_attn'"):
        case.run()
