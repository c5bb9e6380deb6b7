import math

import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend, tail_mask
from folovllm.attention.metadata import AttentionMetadata
from lab_judge import expect, expect_close, invariant

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 8, 4
SCALE = 0.5


def backend():
    return PagedTorchBackend(HEADS, KV_HEADS, SIZE, SCALE)


def step(tables, seq_lens):
    """A step in which each sequence decodes one token."""
    return AttentionMetadata(
        query_start_loc=torch.arange(len(seq_lens) + 1, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        slot_mapping=torch.zeros(len(seq_lens), dtype=torch.int64),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        max_query_len=1,
        max_seq_len=max(seq_lens),
    )


def numbered():
    """A cache of 8 blocks whose keys are the number of their slot, and values its opposite."""
    slots = torch.arange(8 * BLOCK, dtype=torch.float32).view(8, BLOCK, 1, 1).expand(8, BLOCK, KV_HEADS, SIZE)
    return torch.stack([slots, -slots])


def slots_read(cache, tables, seq_lens, seq):
    read = backend()._read(cache, step(tables, seq_lens), seq)
    return read[0, 0, :, 0].tolist()


@invariant(1)
def test_blocks_come_in_the_tables_order():
    wanted = [12, 13, 14, 15, 28, 29, 30, 31, 20, 21, 22, 23]
    expect(slots_read(numbered(), [[3, 7, 5, 0]], [12], 0), wanted)
    read = backend()._read(numbered(), step([[3, 7, 5, 0]], [12]), 0)
    expect(list(read.shape), [2, KV_HEADS, 12, SIZE])
    expect(read[1, 1, :, 3].tolist(), [-slot for slot in wanted])


@invariant(1)
def test_each_sequence_has_its_own_table():
    tables, lens = [[3, 7], [1, 0], [6, 2]], [8, 4, 8]
    expect(slots_read(numbered(), tables, lens, 2), [24, 25, 26, 27, 8, 9, 10, 11])
    expect(slots_read(numbered(), tables, lens, 1), [4, 5, 6, 7])


@invariant(1)
def test_blocks_with_a_gap_and_blocks_that_fall():
    tables = [[3, 5], [5, 4]]
    expect(slots_read(numbered(), tables, [8, 8], 0), [12, 13, 14, 15, 20, 21, 22, 23])
    expect(slots_read(numbered(), tables, [8, 8], 1), [20, 21, 22, 23, 16, 17, 18, 19])


@invariant(1)
def test_each_layer_has_its_own_cache():
    paged, metadata = backend(), step([[3, 5]], [8])
    layers = [paged._read(cache, metadata, 0)[0, 0, 0, 0].item() for cache in (numbered(), numbered() + 1000)]
    expect(layers, [12, 1012])


@invariant(2)
def test_what_no_token_has_written_is_cut_off():
    cache = numbered()
    cache[:, 5, 2:], cache[:, 2, 1:] = math.nan, math.nan
    expect(slots_read(cache, [[7, 5]], [6], 0), [28, 29, 30, 31, 20, 21])
    expect(slots_read(cache, [[1, 2]], [5], 0), [4, 5, 6, 7, 8])


@invariant(2)
def test_cache_and_tables_are_only_read():
    cache, metadata = numbered(), step([[4, 5, 0]], [6])
    cache[:, 5, 2:] = math.nan
    before, tables = cache.clone(), [list(blocks) for blocks in metadata.block_ids]
    backend()._read(cache, metadata, 0)
    expect_close(cache, before)
    expect([list(blocks) for blocks in metadata.block_ids], tables)


@invariant(3)
def test_consecutive_blocks_are_a_view_of_the_cache():
    cache = numbered()
    read = backend()._read(cache, step([[4, 5, 6]], [11]), 0)
    expect(read[0, 0, :, 0].tolist(), [*range(16, 27)])
    expect(read.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr(), True)


@invariant(3)
def test_padding_behind_consecutive_blocks_does_not_count():
    cache = numbered()
    read = backend()._read(cache, step([[4, 5, 6, 0]], [11]), 0)
    expect(read.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr(), True)


@invariant(3)
def test_a_single_block_is_a_view_too():
    cache = numbered()
    read = backend()._read(cache, step([[4, 0]], [3]), 0)
    expect(read.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr(), True)


def by_hand(q, k, v):
    """Attention token by token, in float64."""
    out = torch.zeros(1, HEADS, SIZE, dtype=torch.float64)
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        weights = [math.exp(float(q[0, head].double() @ row.double()) * SCALE) for row in k[kv]]
        for weight, row in zip(weights, v[kv], strict=True):
            out[0, head] += weight / sum(weights) * row.double()
    return out


@invariant(4)
def test_a_decode_reads_the_heads_of_its_group():
    q = torch.zeros(1, HEADS, SIZE)
    k = torch.zeros(KV_HEADS, 3, SIZE)
    v = torch.tensor([1.0, 2.0]).view(KV_HEADS, 1, 1).expand(KV_HEADS, 3, SIZE)
    out = backend()._decode(q, k, v)
    expect(list(out.shape), [1, HEADS, SIZE])
    expect(out[0, :, 0].tolist(), [1, 1, 2, 2])


@invariant(4)
def test_a_decode_is_plain_attention():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, HEADS, SIZE, generator=generator)
    k, v = torch.randn(2, KV_HEADS, 7, SIZE, generator=generator)
    expect_close(backend()._decode(q, k, v), by_hand(q, k, v))


@invariant(4)
def test_each_decode_has_a_result_of_its_own():
    q, k = torch.zeros(1, HEADS, SIZE), torch.zeros(KV_HEADS, 3, SIZE)
    outs = [backend()._decode(q, k, torch.full((KV_HEADS, 3, SIZE), value)) for value in (1.0, 5.0)]
    expect([out[0, 0, 0].item() for out in outs], [1, 5])


@invariant(4)
def test_a_large_score_does_not_overflow():
    q = torch.full((1, HEADS, SIZE), 10.0)  # scores of .5 * 8 * 10 * 5 = 200 and 0: exp(200) is infinite in float32
    k = torch.tensor([5.0, 0.0]).view(1, 2, 1).expand(KV_HEADS, 2, SIZE)
    v = torch.tensor([3.0, 7.0]).view(1, 2, 1).expand(KV_HEADS, 2, SIZE)
    expect_close(backend()._decode(q, k, v)[0, :, 0], [3.0] * 4)


@invariant(5)
def test_the_last_queries_see_all_the_past():
    mask = tail_mask(2, 5, torch.device("cpu"))
    expect(mask.dtype == torch.bool, True)
    expect(mask.int().tolist(), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    expect(tail_mask(3, 3, torch.device("cpu")).int().tolist(), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


@invariant(5)
def test_a_mask_is_where_it_is_asked_for():
    expect(tail_mask(1, 2, torch.device("meta")).device.type, "meta")


@invariant(5)
def test_each_mask_is_made_for_its_length():
    cpu = torch.device("cpu")
    masks = [tail_mask(2, seq_len, cpu) for seq_len in (3, 4, 3)]
    expect(
        [mask.int().tolist() for mask in masks], [[[1, 1, 0], [1, 1, 1]], [[1, 1, 1, 0], [1] * 4], [[1, 1, 0], [1] * 3]]
    )


@invariant(5)
def test_a_mask_is_the_callers_own():
    mask = tail_mask(2, 3, torch.device("cpu"))
    mask.fill_(False)
    expect(tail_mask(2, 3, torch.device("cpu")).int().tolist(), [[1, 1, 0], [1, 1, 1]])
    expect(mask.int().tolist(), [[0] * 3] * 2)
