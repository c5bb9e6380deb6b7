"""The paged backend against attention written out in float64, over blocks scattered in a cache full of NaN."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from folovllm.attention.backends import paged_torch
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.layer import Attention
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

    @property
    def plan(self) -> paged_torch.Plan:
        return self.backend._plan

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
def test_long_decodes_equal_float64(dtype, monkeypatch):
    monkeypatch.setattr(paged_torch, "SMALL_BYTES", 0)
    monkeypatch.setattr(paged_torch, "CHUNK_BYTES", 8 << 10)  # float32: 2 blocks of 16 tokens with 2 heads of 32
    make([(1, length - 1) for length in (1, 31, 32, 33, 95, 96, 97, 300)], dtype=dtype).check()


def test_what_one_batch_gathered_does_not_leak_into_the_next():
    """Gathers share their memory: what a long sequence left there must not reach a short one."""
    long, short = make([(1, 200), (1, 300)]), make([(1, 3), (1, 17)])
    short.layer.backend = long.backend
    long.check()
    short.check()


def test_infinite_garbage_in_unwritten_slots_reaches_no_result():
    case = make([(1, 40), (1, 7), (5, 0), (3, 9)])
    case.layer.kv_cache[case.layer.kv_cache.isnan()] = torch.inf
    case.check()


def test_many_queries_take_turns_with_one_mask(monkeypatch):
    monkeypatch.setattr(paged_torch, "MASKED_QUERIES", 8)
    case = make([(20, 30), (3, 50), (8, 1)])
    case.check()
    assert case.plan.mask.shape == (8, 53)


def test_queries_in_another_dtype_than_the_cache_keep_theirs():
    case = make([(1, 20), (4, 4)], dtype=torch.bfloat16)
    q, k, v, metadata = case.inputs
    out = case.layer(q.float(), k.float(), v.float(), metadata)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), case.want, atol=3e-2, rtol=0)


def test_a_step_in_inference_mode_and_one_outside_share_the_memory():
    case = make([(1, 20), (1, 30)])
    with torch.inference_mode():
        case.run()
    case.check()


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
    """What one layer's attention calls, after the plan is made."""
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
    assert "index_select" not in watched(make(spans, tables=tables)).calls
    assert "index_select" in watched(make(spans)).calls


def test_a_long_run_of_consecutive_blocks_is_read_without_copying(monkeypatch):
    monkeypatch.setattr(paged_torch, "SMALL_BYTES", 0)
    monkeypatch.setattr(paged_torch, "CHUNK_BYTES", 32 << 10)  # 8 blocks of 16 tokens with 2 heads of 32
    run_then_scattered = [*range(5, 13), 40, 30]
    case = make([(1, 159)], tables=[run_then_scattered])
    assert watched(case).calls.count("index_select") == 2  # K and V of the last two blocks
    (seq,) = case.plan.alone
    assert seq.pieces[0] == (slice(5, 13), 128)


@pytest.mark.parametrize("spans", [[(1, 500)], [(1, 50)] * 8, [(60, 0)], [(30, 30)]])
def test_keys_and_values_are_never_repeated_for_their_group(spans, monkeypatch):
    """8 query heads read 1 KV head: a copy per query head would be 8 times what is gathered."""
    monkeypatch.setattr(paged_torch, "CHUNK_BYTES", 8 << 10)
    case = make(spans, num_heads=8, num_kv_heads=1, head_size=64)
    queries = case.inputs[0].numel()
    gathered = sum(new + old for new, old in spans) * 64
    assert watched(case).largest <= max(gathered, queries)


def test_small_decodes_of_a_step_share_their_calls():
    case = make([(1, 50 + 3 * i) for i in range(64)])
    calls = watched(case).calls
    assert not case.plan.alone
    assert calls.count("_scaled_dot_product_flash_attention_for_cpu") == len(case.plan.together) < 10
    assert sum(batch.num_seqs for batch in case.plan.together) == 64


def test_large_float32_decodes_are_read_in_chunks():
    """8 KV heads of 128: 600 tokens have 2.3 MiB of keys."""
    case = make([(1, 599)], 16, 8, 128)
    calls = watched(case).calls
    assert [num_tokens for _, num_tokens in case.plan.alone[0].pieces] == [512, 88]
    assert calls.count("bmm") == 2
    assert calls.count("index_select") == 4


def test_large_decodes_in_16_bits_are_gathered_whole():
    case = make([(1, 599)], 16, 8, 128, dtype=torch.bfloat16)
    calls = watched(case).calls
    assert not case.plan.together
    assert (calls.count("bmm"), calls.count("index_select")) == (0, 2)


def test_a_long_sequence_does_not_pad_the_short_ones():
    case = make([(1, 9)] * 30 + [(1, 400)])  # alone, the long one stays under SMALL_BYTES
    case.check()
    padded = sum(batch.num_seqs * batch.longest for batch in case.plan.together)
    needed = 30 * 10 + 401
    assert (padded - needed) * 2 * 2 * 32 * 4 <= paged_torch.PADDING_BYTES


def test_no_gather_exceeds_its_limit(monkeypatch):
    monkeypatch.setattr(paged_torch, "BATCH_BYTES", 100 << 10)  # 200 tokens with 2 heads of 32 in float32
    case = make([(1, 49)] * 9)
    case.check()
    assert [batch.num_seqs for batch in case.plan.together] == [4, 4]
    assert len(case.plan.alone) == 1


def test_a_step_is_planned_once_for_all_its_layers():
    case = make([(1, 20), (1, 30), (4, 4)])
    case.run()
    first = case.plan
    case.run()
    assert case.plan is first
    q, k, v, metadata = case.inputs
    again = AttentionMetadata(**{name: getattr(metadata, name) for name in metadata.__dataclass_fields__})
    case.layer(q, k, v, again)
    assert case.plan is not first
