"""The paged backend against attention written out in float64, over blocks scattered in a cache full of NaN."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from folovllm.attention.backend import Attention, get_backend_class
from folovllm.attention.backends import paged_torch
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata

TOLERANCE = {torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def reference(q, k, v, scale):
    """Softmax attention of one sequence, in float64; query j sits at position len(k) - len(q) + j."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    scores = q.unflatten(0, (-1, group)) @ k[:, None].transpose(-1, -2) * scale
    positions = torch.arange(k.shape[1] - q.shape[1], k.shape[1])
    scores.masked_fill_(torch.arange(k.shape[1]) > positions[:, None], -torch.inf)
    return (scores.softmax(-1) @ v[:, None]).flatten(0, 1).transpose(0, 1)


@dataclass
class Case:
    """A batch whose older tokens are in the cache already."""

    layer: Attention
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionMetadata]
    want: torch.Tensor

    @property
    def backend(self) -> PagedTorchBackend:
        return self.layer.backend

    def run(self) -> torch.Tensor:
        return self.layer(*self.inputs)

    def check(self) -> None:
        tolerance = TOLERANCE[self.layer.kv_cache.dtype]
        torch.testing.assert_close(self.run().double(), self.want, atol=tolerance, rtol=0)


def make(spans, num_heads=4, num_kv_heads=2, head_size=32, block_size=16, dtype=torch.float32, tables=None) -> Case:
    """`spans`: (new tokens, tokens already in the cache) of each sequence; `tables`: its blocks, scattered if None."""
    generator = torch.Generator().manual_seed(0)
    lens = [new + old for new, old in spans]
    needed = [-(-length // block_size) for length in lens]
    if tables is None:
        scattered = torch.randperm(sum(needed) + 3, generator=generator) + 1  # 0 is the null block
        tables = [blocks.tolist() for blocks in scattered[: sum(needed)].split(needed)]
    num_blocks = max(map(max, tables)) + 1

    layer = Attention(num_heads, num_kv_heads, head_size)
    backend = PagedTorchBackend(num_heads, num_kv_heads, head_size, layer.scale)
    cache = torch.full(backend.kv_cache_shape(num_blocks, block_size), float("nan"), dtype=dtype)
    layer.bind(backend, cache)

    def rand(count, heads):
        return torch.randn(count, heads, head_size, generator=generator).to(dtype)

    keys, values = ([rand(length, num_kv_heads) for length in lens] for _ in range(2))
    queries = [rand(new, num_heads) for new, _ in spans]
    offsets = torch.arange(block_size)
    slots = [
        (torch.tensor(blocks)[:, None] * block_size + offsets).flatten()[:length]
        for blocks, length in zip(tables, lens, strict=True)
    ]
    for (_, old), k, v, slot in zip(spans, keys, values, slots, strict=True):
        backend.write(k[:old], v[:old], cache, slot[:old])

    def fresh(rows):
        return torch.cat([row[old:] for (_, old), row in zip(spans, rows, strict=True)])

    block_tables = torch.zeros(len(spans), max(needed) + 1, dtype=torch.int32)  # padded with the null block
    for row, blocks, count in zip(block_tables, tables, needed, strict=True):
        row[:count] = torch.tensor(blocks[:count])
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, *(new for new, _ in spans)]).cumsum(0).int(),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        slot_mapping=fresh(slots),
        block_tables=block_tables,
        max_query_len=max(new for new, _ in spans),
        max_seq_len=max(lens),
    )
    sequences = zip(queries, keys, values, strict=True)
    want = torch.cat([reference(q, k, v, layer.scale) for q, k, v in sequences])
    return Case(layer, (torch.cat(queries), fresh(keys), fresh(values), metadata), want)


BATCHES = {
    "prefill": lambda bs: [(9, 0), (2 * bs + 3, 0)],
    "one token": lambda bs: [(1, 0)],
    "decode": lambda bs: [(1, 20), (1, 3 * bs)],
    "mixed": lambda bs: [(5, 0), (1, 33), (1, 0), (7, 12), (1, 2 * bs)],
    "queries that start in the middle": lambda bs: [(4, 3), (16, 16), (2, 2 * bs)],
    "lengths at the edge of a block": lambda bs: [
        *((1, n - 1) for n in (bs - 1, bs, bs + 1)),
        *((n, 0) for n in (bs - 1, bs, bs + 1)),
        *((2, n - 2) for n in (bs - 1, bs, bs + 1)),
    ],
    "64 ragged decodes": lambda bs: [(1, 1 + 37 * i % 149) for i in range(64)],
}
SHAPES = [  # covers each value of each column, and each group size with each dtype
    # heads, KV heads, head size, block size, dtype
    (2, 2, 32, 16, torch.float32),
    (4, 2, 64, 32, torch.float32),
    (4, 1, 128, 64, torch.float32),
    (8, 1, 32, 256, torch.float32),
    (4, 4, 64, 256, torch.bfloat16),
    (16, 8, 128, 16, torch.bfloat16),
    (8, 2, 32, 32, torch.bfloat16),
    (8, 1, 64, 64, torch.bfloat16),
    (2, 2, 128, 32, torch.float16),
    (4, 2, 32, 64, torch.float16),
    (8, 2, 64, 16, torch.float16),
    (8, 1, 32, 16, torch.float16),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("batch", BATCHES)
def test_paged_attention_equals_float64(batch, shape):
    *_, block_size, dtype = shape
    make(BATCHES[batch](block_size), *shape[:3], block_size, dtype).check()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_long_decodes_equal_float64(dtype):
    make([(1, length - 1) for length in (1, 31, 32, 33, 95, 96, 97, 300)], dtype=dtype).check()


def test_one_backend_takes_a_batch_after_another():
    long, short = make([(1, 200), (1, 300)]), make([(1, 3), (1, 17)])
    short.layer.backend = long.backend
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
    case = make([(1, 20), (4, 4)], dtype=torch.bfloat16)
    q, k, v, metadata = case.inputs
    out = case.layer(q.float(), k.float(), v.float(), metadata)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), case.want, atol=3e-2, rtol=0)


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
    q, _, _, metadata = case.inputs
    with torch.no_grad(), Watch() as watch:
        case.backend.forward(q, case.layer.kv_cache, metadata)
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
    case = make(spans, num_heads=8, num_kv_heads=1, head_size=64)
    queries = case.inputs[0].numel()
    gathered = 2 * sum(-(-(new + old) // 16) * 16 for new, old in spans) * 64
    assert watched(case).largest <= max(gathered, queries)


def test_an_unknown_backend_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"attention_backend must be one of .*dense.*, got 'fast'"):
        get_backend_class("fast")
