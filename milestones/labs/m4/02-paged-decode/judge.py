import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from folovllm.attention.kernels import paged_decode as module
from lab_judge import expect, expect_close, invariant

LN2 = 0.6931471805599453  # as the scale: the weight of a score s is 2^s


@pytest.fixture(autouse=True)
def _memory_that_was_never_written_holds_nan(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: torch.full(shape, float("nan"), **options))


class Parts:
    """Stands in for _merge: keeps what the splits have written."""

    def __getitem__(self, grid):
        return self.keep

    def keep(self, partial, lse, *rest, **options):
        self.partial, self.lse = partial.clone(), lse.clone()


def attend(q, k, v, tables, seq_lens, **options):
    """q [sequences, heads, head size]; k, v [blocks, block size, KV heads, head size]."""
    tables, seq_lens = (torch.tensor(each, dtype=torch.int32) for each in (tables, seq_lens))
    return module.paged_decode(q, k, v, tables, seq_lens, LN2, **{"num_splits": 1, **options})


def plain(q, k, v, table, seq_len):
    """The same for one sequence, in plain torch: [heads, head size]."""
    keys, values = (cache[torch.tensor(table)].flatten(0, 1)[:seq_len] for cache in (k, v))
    group = q.shape[0] // keys.shape[1]
    keys, values = (each.repeat_interleave(group, 1).transpose(0, 1) for each in (keys, values))  # [heads, tokens, …]
    return ((keys @ q[:, :, None]).squeeze(2).mul(LN2).softmax(1)[:, None] @ values).squeeze(1)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@invariant(1)
def test_one_head_by_hand():
    k, v = torch.zeros(2, 2, 1, 1), torch.zeros(2, 2, 1, 1)
    k[1, :, 0, 0], v[1, :, 0, 0] = torch.tensor([1.0, 3.0]), torch.tensor([10.0, 20.0])
    # weights 2^1 and 2^3: (2 * 10 + 8 * 20) / 10
    expect_close(attend(torch.ones(1, 1, 1), k, v, [[1]], [2]).item(), 18.0, atol=1e-4)


@invariant(1)
def test_heads_of_a_size_that_is_no_power_of_two():
    q, k, v = random(1, 1, 3), random(4, 2, 1, 3), random(4, 2, 1, 4)[..., :3]
    expect_close(attend(q, k, v, [[2, 1]], [3])[0], plain(q[0], k, v, [2, 1], 3), atol=1e-5)


@invariant(2)
def test_a_group_of_query_heads_reads_its_own_kv_head():
    q, k, v = random(1, 6, 4), random(4, 2, 2, 4), random(4, 2, 2, 5)[..., :4]
    expect_close(attend(q, k, v, [[3, 1]], [4])[0], plain(q[0], k, v, [3, 1], 4), atol=1e-5)


@invariant(2)
def test_heads_may_lie_further_apart_than_they_are_long():
    q, k, v = random(1, 4, 5)[..., :3], random(4, 2, 2, 6)[..., :3], random(4, 2, 2, 4)[..., :3]
    expect_close(attend(q, k, v, [[3, 1]], [4])[0], plain(q[0], k, v, [3, 1], 4), atol=1e-5)


@invariant(3)
def test_each_sequence_has_its_table_and_its_length():
    q, k, v = random(3, 2, 4), random(8, 2, 1, 4), random(8, 2, 1, 5)[..., :4]
    tables, seq_lens = [[1, 2, 0], [5, 3, 7], [4, 0, 0]], [4, 5, 1]
    out = attend(q, k, v, tables, seq_lens)
    expect_close(
        out, torch.stack([plain(*each) for each in zip(q, [k] * 3, [v] * 3, tables, seq_lens, strict=True)]), atol=1e-5
    )


@invariant(3)
def test_the_order_says_which_sequences_start():
    q, k, v = random(3, 2, 4), random(8, 2, 1, 4), random(8, 2, 1, 5)[..., :4]
    tables, seq_lens = [[1, 2, 0], [5, 3, 7], [4, 0, 0]], [4, 5, 1]
    order, out = torch.tensor([2, 1, 2], dtype=torch.int32), torch.full((3, 2, 4), float("nan"))
    attend(q, k, v, tables, seq_lens, order=order, out=out)
    expect(out.isnan().all(2).all(1).tolist(), [True, False, False])  # the first one never starts
    expect_close(out[1], plain(q[1], k, v, tables[1], 5), atol=1e-5)


@invariant(3)
def test_all_that_a_sequence_has_follows_the_order():
    q, k, v = random(3, 2, 4), random(8, 2, 1, 4), random(8, 2, 1, 5)[..., :4]
    tables, seq_lens = [[1, 2, 0], [5, 3, 7], [4, 0, 0]], [4, 5, 1]
    order, out = torch.tensor([2, 0, 1], dtype=torch.int32), torch.full((3, 2, 4), float("nan"))
    attend(q, k, v, tables, seq_lens, order=order, out=out)
    expected = torch.stack([plain(q[n], k, v, tables[n], seq_lens[n]) for n in range(3)])
    expect_close(out, expected, atol=1e-5)


@invariant(4)
def test_it_writes_where_out_says_and_nowhere_else():
    q, k, v = random(2, 4, 3)[:, 1:3], random(4, 2, 1, 3), random(4, 2, 1, 4)[..., :3]
    whole = torch.full((2, 5, 4), -1.0, dtype=torch.float64)
    attend(q, k, v, [[1], [2]], [2, 2], out=whole[:, 1:3, :3])
    expect_close(whole[:, 1:3, :3], torch.stack([plain(q[n], k, v, [n + 1], 2).double() for n in (0, 1)]), atol=1e-5)
    whole[:, 1:3, :3] = -1.0
    expect((whole == -1.0).all().item(), True)


@invariant(5)
def test_a_split_writes_its_result_and_its_log_sum(monkeypatch):
    monkeypatch.setattr(module, "_merge", parts := Parts())
    k, v = torch.zeros(9, 16, 1, 1), torch.full((9, 16, 1, 1), 10.0)
    k[8, :2], v[8, :2] = 6.0, 50.0  # tokens 128 and 129 are the second split: the first has two whole tiles of 64
    attend(torch.ones(1, 1, 1), k, v, [list(range(9))], [130], num_splits=2)
    expect_close(parts.partial.flatten(), torch.tensor([10.0, 50.0]), atol=1e-4)
    expect_close(parts.lse.flatten(), torch.tensor([7.0, 7.0]), atol=1e-4)  # 128 times 2^0; twice 2^6


@invariant(5)
def test_places_of_heads_and_sequences(monkeypatch):
    monkeypatch.setattr(module, "_merge", parts := Parts())
    q, k, v = random(2, 6, 3), random(6, 16, 3, 3), random(6, 16, 3, 3)
    tables = [[0, 1, 2, 3, 4], [5, 4, 3, 2, 1]]
    attend(q, k, v, tables, [65, 33], num_splits=2)
    first = torch.stack([plain(q[n], k, v, tables[n], (64, 33)[n]) for n in (0, 1)])
    expect_close(parts.partial[:, :, 0], first, atol=1e-5)
    expect(parts.lse[:, :, 1].isnan().tolist(), [[False] * 6, [True] * 6])


@invariant(5)
def test_the_place_is_that_of_the_sequence_in_any_order(monkeypatch):
    monkeypatch.setattr(module, "_merge", parts := Parts())
    q, k, v = random(2, 6, 3), random(6, 16, 3, 3), random(6, 16, 3, 3)
    tables, order = [[0, 1, 2, 3, 4], [5, 4, 3, 2, 1]], torch.tensor([1, 0], dtype=torch.int32)
    attend(q, k, v, tables, [65, 33], num_splits=2, order=order)
    first = torch.stack([plain(q[n], k, v, tables[n], (64, 33)[n]) for n in (0, 1)])
    expect_close(parts.partial[:, :, 0], first, atol=1e-5)


@invariant(5)
def test_a_split_is_not_rounded_and_writes_no_result(monkeypatch):
    monkeypatch.setattr(module, "_merge", parts := Parts())
    q, k, v = random(1, 2, 3), random(5, 16, 1, 3), random(5, 16, 1, 4)[..., :3]
    out = torch.full((1, 2, 3), float("nan"), dtype=torch.bfloat16)
    attend(q, k, v, [[0, 1, 2, 3, 4]], [65], num_splits=2, out=out)
    expect_close(parts.partial[0, :, 0], plain(q[0], k, v, [0, 1, 2, 3, 4], 64), atol=1e-5)
    expect(out.isnan().all().item(), True)


@invariant(5)
def test_a_split_without_tokens_writes_nothing(monkeypatch):
    monkeypatch.setattr(module, "_merge", parts := Parts())
    k, v = torch.zeros(5, 16, 1, 1), torch.full((5, 16, 1, 1), 10.0)
    attend(torch.ones(1, 1, 1), k, v, [[0, 1, 2, 3, 4]], [64], num_splits=3)
    expect(parts.lse.isnan().flatten().tolist(), [False, True, True])
