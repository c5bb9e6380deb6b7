import math

import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend, Plan
from folovllm.attention.metadata import AttentionMetadata
from lab_judge import expect, expect_close, invariant

HEADS, KV_HEADS, SIZE = 4, 2, 8
SCALE = 1 / math.sqrt(SIZE)


def backend():
    return PagedTorchBackend(HEADS, KV_HEADS, SIZE, SCALE)


def plan(tables, seq_lens, block_size=4):
    """The plan of a step in which each sequence decodes one token."""
    ends = list(range(len(seq_lens) + 1))
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor(ends, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        slot_mapping=torch.zeros(len(seq_lens), dtype=torch.int64),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        max_query_len=1,
        max_seq_len=max(seq_lens),
    )
    made = Plan.__new__(Plan)
    made._metadata, made._block_size = metadata, block_size
    return made


def cache(seed=0, num_blocks=8, block_size=4):
    """Keys and values [num_blocks, block_size, KV_HEADS, SIZE], and a query [1, HEADS, SIZE]."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, num_blocks, block_size, KV_HEADS, SIZE, generator=generator)
    return keys, values, torch.randn(1, HEADS, SIZE, generator=generator)


def by_hand(q, keys, values, slots):
    """Attention token by token, in float64."""
    out = torch.zeros(1, HEADS, SIZE, dtype=torch.float64)
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        k = keys.flatten(0, 1)[slots, kv].double()
        v = values.flatten(0, 1)[slots, kv].double()
        weights = [math.exp(float(q[0, head].double() @ row) * SCALE) for row in k]
        for weight, row in zip(weights, v, strict=True):
            out[0, head] += weight / sum(weights) * row
    return out


@invariant(1, likely="blocks-for-slots")
def test_slots_follow_the_table():
    slots = plan(tables=[[3, 7, 5]], seq_lens=[10])._slots(torch.tensor([0]), longest=10)
    expect(slots.tolist(), [[12, 13, 14, 15, 28, 29, 30, 31, 20, 21]])


@invariant(1)
def test_slots_of_some_of_the_sequences():
    some = plan(tables=[[3, 7], [1, 0], [6, 2]], seq_lens=[8, 3, 5])
    slots = some._slots(torch.tensor([2, 0]), longest=5)
    expect(slots.tolist(), [[24, 25, 26, 27, 8], [12, 13, 14, 15, 28]])
    expect(slots.dtype == torch.int64, True)


@invariant(2, likely="heads-in-turn")
def test_the_heads_of_a_group_are_neighbours():
    q = torch.arange(HEADS, dtype=torch.float32)[None, :, None].expand(1, HEADS, SIZE).contiguous()
    grouped = backend()._grouped(q)
    expect(list(grouped.shape), [1, KV_HEADS, HEADS // KV_HEADS, SIZE])
    expect(grouped[0, :, :, 0].tolist(), [[0, 1], [2, 3]], mistakes={"heads-in-turn": [[0, 2], [1, 3]]})


@invariant(3, likely="forgets-the-scale")
def test_one_piece_is_plain_attention():
    keys, values, q = cache()
    out = backend()._decode_chunks(q, keys, values, [(torch.tensor([3, 7]), 8)])
    slots = [12, 13, 14, 15, 28, 29, 30, 31]
    expect_close(out, by_hand(q, keys, values, slots))


@invariant(4, likely="softmax-in-each-piece")
def test_two_pieces_are_one_softmax():
    keys, values, q = cache()
    out = backend()._decode_chunks(q, keys, values, [(torch.tensor([3]), 4), (torch.tensor([7]), 4)])
    slots = [12, 13, 14, 15, 28, 29, 30, 31]
    expect_close(out, by_hand(q, keys, values, slots))


@invariant(4)
def test_a_slice_of_consecutive_blocks_is_a_piece():
    keys, values, q = cache()
    out = backend()._decode_chunks(q, keys, values, [(slice(2, 4), 8), (torch.tensor([6]), 2)])
    expect_close(out, by_hand(q, keys, values, [8, 9, 10, 11, 12, 13, 14, 15, 24, 25]))


@invariant(5)
def test_unwritten_slots_reach_nothing():
    keys, values, q = cache()
    keys[7, 2:], values[7, 2:] = math.nan, math.nan
    out = backend()._decode_chunks(q, keys, values, [(torch.tensor([3]), 4), (torch.tensor([7]), 2)])
    expect_close(out, by_hand(q, keys, values, [12, 13, 14, 15, 28, 29]))
