"""The paged backend against attention written out in float64, over blocks scattered in a cache full of NaN."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from folovllm.attention.backend import get_backend_class
from folovllm.attention.backends import paged_torch
from folovllm.attention.backends.dense import DenseBackend
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from tests.m3.attention_reference import BATCHES, SHAPES, TOLERANCE, Case, Shape, Spans, make_case

RAGGED = {
    "64 ragged decodes": lambda bs: [(1, 1 + 37 * i % 149) for i in range(64)],
    "long decodes": lambda bs: [(1, length - 1) for length in (1, 31, 32, 33, 95, 96, 97, 300)],
}


def make(spans: Spans, shape: Shape = SHAPES[0], **more) -> Case:
    return make_case(PagedTorchBackend, spans, shape, **more)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_paged_attention_equals_float64(batch, shape):
    make(BATCHES[batch](shape.block_size), shape).check()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch", RAGGED)
def test_ragged_decodes_equal_float64(batch, dtype):
    make(RAGGED[batch](16), SHAPES[0]._replace(dtype=dtype)).check()


@pytest.mark.parametrize("batch", BATCHES)
def test_a_sequence_in_one_block_equals_float64(batch):
    make_case(DenseBackend, BATCHES[batch](16)).check()


def test_one_backend_takes_a_batch_after_another():
    long, short = make([(1, 200), (1, 300)]), make([(1, 3), (1, 17)], seed=1)
    short.layer.backend = long.layer.backend
    long.check()
    short.check()


def test_infinite_garbage_in_unwritten_slots_reaches_no_result():
    case = make([(1, 40), (1, 7), (5, 0), (3, 9)])
    case.layer.kv_cache[case.layer.kv_cache.isnan()] = torch.inf
    case.check()


def test_many_queries_take_turns_with_small_masks(monkeypatch):
    monkeypatch.setattr(paged_torch, "MASKED_QUERIES", 8)
    shapes, tail_mask = [], paged_torch.tail_mask

    def spy(num_queries, seq_len, device):
        shapes.append((num_queries, seq_len))
        return tail_mask(num_queries, seq_len, device)

    monkeypatch.setattr(paged_torch, "tail_mask", spy)
    make([(20, 30), (3, 50), (8, 0)]).check()
    assert shapes == [(8, 38), (8, 46), (4, 50), (3, 53)]


def test_queries_in_another_dtype_than_the_cache_keep_theirs():
    make([(1, 20), (4, 4)], SHAPES[0]._replace(dtype=torch.bfloat16), query_dtype=torch.float32).check()


class Watch(TorchDispatchMode):
    """Counts operators and notes the largest tensor that one of them makes (views make none)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls.append(func.overloadpacket.__name__)
        held = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        for made in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in held:
                self.largest = max(self.largest, made.numel())
        return out


def watched(case: Case) -> Watch:
    """What one layer's attention calls."""
    case.check()
    with torch.no_grad(), Watch() as watch:
        case.layer.backend.forward(case.q, case.layer.kv_cache, case.metadata)
    return watch


CONSECUTIVE = {
    "decode": [(1, 299)],
    "prefill": [(40, 0), (20, 0)],
    "queries that start in the middle": [(20, 35)],
}


@pytest.mark.parametrize("batch", CONSECUTIVE)
def test_consecutive_blocks_are_read_without_copying(batch):
    spans = CONSECUTIVE[batch]
    starts = [3 + 20 * i for i in range(len(spans))]
    tables = [list(range(s, s + -(-(new + old) // 16))) for s, (new, old) in zip(starts, spans, strict=True)]
    consecutive = watched(make(spans, tables=tables)).calls
    assert not {"index_select", "index", "gather", "stack"} & set(consecutive)
    assert watched(make(spans)).calls != consecutive  # blocks that are scattered are gathered


@pytest.mark.parametrize("spans", [[(1, 500)], [(1, 50)] * 8, [(60, 0)], [(30, 30)]])
def test_keys_and_values_are_never_repeated_for_their_group(spans):
    """8 query heads read 1 KV head: a copy per query head would be 8 times what is gathered."""
    case = make(spans, Shape(8, 1, 64, 16, torch.float32))
    queries = case.q.numel()
    gathered = 2 * sum(-(-(new + old) // 16) * 16 for new, old in spans) * 64
    assert watched(case).largest <= max(gathered, queries)


def test_an_unknown_backend_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"attention_backend must be one of .*dense.*, got 'fast'"):
        get_backend_class("fast")
