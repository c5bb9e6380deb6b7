"""The Triton kernels with windows, soft-caps and sinks, beside the plain formula in float64.

What has left a window is not there: null blocks are in its place, and these hold NaN, as does the rest of a block.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from folovllm.attention.backend import AttentionBackend, AttentionExtras
from folovllm.attention.backends.fp8 import PagedFp8Backend, TritonFp8Backend
from folovllm.attention.backends.int8 import PagedInt8Backend, TritonInt8Backend, TritonInvariantInt8Backend
from folovllm.attention.backends.invariant import TritonInvariantBackend
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.backends.triton import TritonBackend, kernels_unavailable_reason
from folovllm.attention.backends.turing import TuringBackend
from tests.helpers import some
from tests.m4.attention_reference import KERNEL_DEVICE, TOLERANCE, Case, Shape, Spans, make_case

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.kernels import paged_decode as decode_module
from folovllm.attention.kernels import tile
from folovllm.attention.kernels.paged_decode import FEW_SPLITS, paged_decode
from tests.m4.compile_keys import record_keys
from tests.m4.test_compile_keys import BLOCK_SIZE, KERNELS, random_step

SMALL = Shape(4, 2, 32, 16, torch.float32)
SINKS = torch.tensor([0.5, -1.0, 3.0, float("-inf")], device=KERNEL_DEVICE)
WINDOWS = (17, 1, 15, 16, 64, 100, 1000)
EXTRAS = {
    "all": AttentionExtras(sliding_window=40, logits_soft_cap=0.7, sinks=SINKS),
    "soft-cap": AttentionExtras(logits_soft_cap=0.7),
    "sinks": AttentionExtras(sinks=SINKS),
    **{f"window of {window}": AttentionExtras(sliding_window=window) for window in WINDOWS},
    "all, window of 1": AttentionExtras(sliding_window=1, logits_soft_cap=0.7, sinks=SINKS),
}
DECODES: Spans = [(1, 199), (8, 150), (3, 61), (1, 63), (8, 0), (1, 0)]
PROMPTS: Spans = [(40, 0), (21, 150), (9, 7), (1, 40)]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, extras: AttentionExtras) -> torch.Tensor:
    """As AttentionExtras says it; q [queries, heads, size] at the last positions of k, v [keys, KV heads, size]."""
    group, window = q.shape[1] // k.shape[1], extras.sliding_window or len(k)
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = scale * torch.einsum("qhd,khd->hqk", q.double(), k)
    if (cap := extras.logits_soft_cap) is not None:
        scores = cap * torch.tanh(scores / cap)
    ages = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None] - torch.arange(len(k), device=q.device)
    weights = scores.masked_fill((ages < 0) | (ages >= window), -torch.inf).exp()
    total = weights.sum(-1) + (0 if extras.sinks is None else extras.sinks.double().exp()[:, None])
    return torch.einsum("hqk,khd->qhd", weights / total[..., None], v)


def case_with(extras: AttentionExtras, spans: Spans, shape: Shape = SMALL) -> Case:
    """All K and V are written, and what no query sees is gone."""
    case = make_case(PagedTorchBackend, spans, shape, device=KERNEL_DEVICE)
    cache, block_size = case.layer.kv_cache, shape.block_size
    assert cache is not None
    case.layer.backend.write(case.k, case.v, cache, case.metadata.slot_mapping)
    wanted, tables = [], case.metadata.block_tables
    for (new, old), q, table in zip(spans, case.q.split([new for new, _ in spans]), tables, strict=True):
        kept = cache[:, table.long()].flatten(1, 2)
        wanted.append(reference(q, *kept[:, : new + old], case.layer.scale, extras))
        gone = max(0, old - (extras.sliding_window or old + 1) + 1)
        cache[:, table[gone // block_size], : gone % block_size] = torch.nan
        table[: gone // block_size] = 0
    case.want = torch.cat(wanted)
    return case


def check(out: torch.Tensor, case: Case) -> None:
    torch.testing.assert_close(out.double(), case.want, atol=TOLERANCE[case.q.dtype], rtol=0)


def backend_of(kind: type[AttentionBackend], case: Case, extras: AttentionExtras) -> AttentionBackend:
    layer = case.layer
    return kind(layer.num_heads, layer.num_kv_heads, layer.head_size, layer.scale, extras)


@pytest.mark.parametrize("num_splits", some([3, 1, FEW_SPLITS + 1]))
@pytest.mark.parametrize("name", some(EXTRAS, kept=5))
def test_decodes_and_drafts(name: str, num_splits: int) -> None:
    case = case_with(EXTRAS[name], DECODES)
    m, out = case.metadata, torch.empty_like(case.q, memory_format=torch.contiguous_format)
    assert case.layer.kv_cache is not None
    paged_decode(
        case.q, *case.layer.kv_cache.unbind(0), m.block_tables, m.seq_lens, case.layer.scale, out=out,
        query_start_loc=m.query_start_loc, num_splits=num_splits, extras=EXTRAS[name],
    )  # fmt: skip
    check(out, case)


@pytest.mark.parametrize("kind", some([TritonBackend, TritonInvariantBackend, TuringBackend]))
@pytest.mark.parametrize("name", some(EXTRAS, kept=5))
def test_prompts_with_a_context(name: str, kind: type[TritonBackend]) -> None:
    case = case_with(EXTRAS[name], PROMPTS)
    check(backend_of(kind, case, EXTRAS[name]).forward(case.q, case.layer.kv_cache, case.metadata), case)


@pytest.mark.parametrize("shape", [Shape(4, 1, 48, 24, torch.bfloat16), Shape(4, 4, 64, 32, torch.float16)], ids=str)
def test_other_groups_heads_and_blocks(shape: Shape) -> None:
    for spans in (DECODES, PROMPTS):
        case = case_with(EXTRAS["all"], spans, shape)
        check(backend_of(TritonBackend, case, EXTRAS["all"]).forward(case.q, case.layer.kv_cache, case.metadata), case)


@pytest.mark.parametrize("kind", [TritonInt8Backend, TritonInvariantInt8Backend, TritonFp8Backend])
def test_caches_of_8_bits(kind: type[TritonBackend]) -> None:
    case = make_case(PagedTorchBackend, [(40, 0), (100, 0)], SMALL, device=KERNEL_DEVICE)
    later = make_case(PagedTorchBackend, [(1, 39), (1, 99)], SMALL, device=KERNEL_DEVICE)
    plain_kind, dtype = (PagedFp8Backend, torch.uint8) if kind is TritonFp8Backend else (PagedInt8Backend, torch.int8)
    ours, plain = (backend_of(each, case, EXTRAS["all"]) for each in (kind, plain_kind))
    cache = torch.zeros(ours.kv_cache_shape(16, SMALL.block_size), dtype=dtype, device=KERNEL_DEVICE)
    plain.write(case.k, case.v, cache, case.metadata.slot_mapping)
    for q, metadata in ((case.q, case.metadata), (later.q, later.metadata)):
        want = plain.forward(q, cache, metadata)
        torch.testing.assert_close(ours.forward(q, cache, metadata), want, atol=1e-5, rtol=0)


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The first key of each tile that programs take."""
    taken, original = list[Any](), tile.attend_tile

    def attend_tile(q: Any, top: Any, total: Any, acc: Any, start: Any, *others: Any) -> Any:
        taken.append(start)
        return original(q, top, total, acc, start, *others)

    monkeypatch.setattr(tile, "attend_tile", attend_tile)
    return taken


def test_a_window_makes_the_work_small(tiles: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two KV heads. A decode sees 100 keys, two tiles of 64, and has no more splits. Prompts have tiles of 16
    queries and of 32 keys: 16 queries see 115 keys, and 4 see 103."""
    extras = AttentionExtras(sliding_window=100)
    case, splits = case_with(extras, [(1, 1999)]), list[int]()
    choose = decode_module.choose_splits
    monkeypatch.setattr(decode_module, "choose_splits", lambda *args: splits.append(choose(*args)) or splits[0])
    backend_of(TritonBackend, case, extras).forward(case.q, case.layer.kv_cache, case.metadata)
    assert splits == [2]
    assert sorted(tiles) == [1900, 1900, 1964, 1964]
    tiles.clear()
    case = case_with(extras, [(20, 1980)])
    backend_of(TritonBackend, case, extras).forward(case.q, case.layer.kv_cache, case.metadata)
    firsts = [start + 32 * number for start in (1881, 1897) for number in range(4)]
    assert sorted(tiles) == sorted(firsts * 2)


def test_a_tile_of_keys_begins_where_it_would_in_any_batch() -> None:
    """With batch invariance a prompt, its chunks and a decode have the same bits, whatever has left the window."""
    whole, outs = case_with(EXTRAS["all"], [(150, 0)]), []
    for new in (150, 43, 1):
        metadata = make_case(PagedTorchBackend, [(new, 150 - new)], SMALL, device=KERNEL_DEVICE).metadata
        metadata.block_tables = whole.metadata.block_tables.clone()
        metadata.block_tables[:, : max(0, 150 - new - 39) // SMALL.block_size] = 0
        backend = backend_of(TritonInvariantBackend, whole, EXTRAS["all"])
        outs.append(backend.forward(whole.q[-new:], whole.layer.kv_cache, metadata))
    assert torch.equal(outs[0][-43:], outs[1])
    assert torch.equal(outs[0][-1:], outs[2])


def test_nothing_is_compiled_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = record_keys(monkeypatch, KERNELS)
    backend = TritonBackend(16, 8, 128, 0.1, AttentionExtras(100, 30.0, torch.zeros(16)))
    cache = torch.zeros(backend.kv_cache_shape(2, BLOCK_SIZE), dtype=torch.bfloat16)
    backend.warm_up(cache)
    warm, rng = set(keys), random.Random(0)
    for _ in range(100):
        random_step(rng, backend, cache)
    assert keys == warm
