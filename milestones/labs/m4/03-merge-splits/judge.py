import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from folovllm.attention.kernels.paged_decode import paged_decode
from lab_judge import expect_close, invariant


@pytest.fixture(autouse=True)
def _memory_that_was_never_written_holds_nan(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: torch.full(shape, float("nan"), **options))


def attend(scores, values, num_splits):
    """The result for one query 1 with heads of one number, whose weights are powers of 2.

    A split takes a whole number of tiles of 64 tokens, so of 65 tokens the first split has 64 and the second 1.
    """
    k, v = torch.zeros(512, 1, 1, 1), torch.zeros(512, 1, 1, 1)  # blocks of one token
    k[: len(scores), 0, 0, 0] = torch.tensor(scores, dtype=torch.float32)
    v[: len(values), 0, 0, 0] = torch.tensor(values, dtype=torch.float32)
    table = torch.arange(512, dtype=torch.int32)[None]
    seq_lens = torch.tensor([len(scores)], dtype=torch.int32)
    ln2 = 0.6931471805599453
    return paged_decode(torch.ones(1, 1, 1), k, v, table, seq_lens, ln2, num_splits=num_splits).item()


@invariant(1)
def test_splits_count_by_their_tokens_where_scores_are_equal():
    out = attend([0] * 64 + [0], [10] * 64 + [75], num_splits=2)
    expect_close(out, (64 * 10 + 1 * 75) / 65, atol=1e-4)


@invariant(1)
def test_a_great_score_outweighs_many_small_ones():
    out = attend([0] * 64 + [6], [10] * 64 + [50], num_splits=2)
    expect_close(out, (64 * 10 + 2**6 * 50) / (64 + 2**6), atol=1e-4)


@invariant(2)
def test_scores_whose_powers_would_overflow():
    out = attend([200] * 64 + [206], [10] * 64 + [50], num_splits=2)
    expect_close(out, 30.0, atol=1e-4)


@invariant(2)
def test_scores_whose_powers_would_vanish():
    out = attend([-206] * 64 + [-200], [10] * 64 + [50], num_splits=2)
    expect_close(out, 30.0, atol=1e-4)


@invariant(2)
def test_far_larger_scores_and_far_smaller_ones():
    for score in (2000, -2000):
        out = attend([score - 6] * 64 + [score], [10] * 64 + [50], num_splits=2)
        expect_close(out, 30.0, atol=1e-2)


@invariant(3)
def test_splits_without_tokens_are_not_read():
    out = attend([0] * 64 + [0], [10] * 64 + [75], num_splits=5)  # three of them have none
    expect_close(out, (64 * 10 + 1 * 75) / 65, atol=1e-4)


@invariant(3)
def test_whatever_lies_there(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: torch.full(shape, 1e30, **options))
    out = attend([0] * 64 + [0], [10] * 64 + [75], num_splits=5)
    expect_close(out, (64 * 10 + 1 * 75) / 65, atol=1e-4)


@invariant(3)
def test_nor_do_they_weigh_beside_very_small_scores():
    out = attend([-2006] * 64 + [-2000], [10] * 64 + [50], num_splits=3)  # the third split has no token
    expect_close(out, 30.0, atol=1e-2)


@invariant(3)
def test_a_split_that_would_begin_at_the_very_end_has_none():
    out = attend([0] * 64 + [6] * 64, [10] * 64 + [50] * 64, num_splits=3)  # of 64, 64 and no tokens
    expect_close(out, (64 * 10 + 64 * 2**6 * 50) / (64 + 64 * 2**6), atol=1e-4)


@invariant(3)
def test_splits_of_several_tiles():
    out = attend([0] * 321, [10] * 256 + [75] * 65, num_splits=5)  # of 128, 128, 65, no and no tokens
    expect_close(out, (256 * 10 + 65 * 75) / 321, atol=1e-4)


@invariant(3)
def test_a_short_sequence_has_one_split():
    expect_close(attend([0, 0], [10, 20], num_splits=4), 15.0)


@invariant(4)
def test_every_head_of_every_sequence_by_itself():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 8), torch.randn(40, 8, 2, 8), torch.randn(40, 8, 2, 8)
    tables = torch.randperm(40, dtype=torch.int32).reshape(2, 20)
    seq_lens = [150, 70]
    out = paged_decode(q, k, v, tables, torch.tensor(seq_lens, dtype=torch.int32), 0.5, num_splits=3)
    for seq, length in enumerate(seq_lens):
        for head in range(4):
            keys = k[tables[seq].long()].reshape(160, 2, 8)[:length, head // 2].double()
            values = v[tables[seq].long()].reshape(160, 2, 8)[:length, head // 2].double()
            weights = (keys @ q[seq, head].double() * 0.5).softmax(0)
            expect_close(out[seq, head].double(), weights @ values)


@invariant(4)
def test_a_result_goes_where_the_strides_of_out_say():
    q, k, v = torch.ones(1, 2, 1), torch.zeros(128, 1, 2, 1), torch.zeros(128, 1, 2, 1)
    v[:, 0, 0, 0], v[:, 0, 1, 0] = 10, 20
    wide = torch.zeros(1, 2, 4)  # each head's result has room for four numbers
    table, seq_lens = torch.arange(128, dtype=torch.int32)[None], torch.tensor([128], dtype=torch.int32)
    paged_decode(q, k, v, table, seq_lens, 1.0, num_splits=2, out=wide[:, :, :1])
    expect_close(wide, torch.tensor([[[10.0, 0, 0, 0], [20.0, 0, 0, 0]]]))


@invariant(4)
def test_so_it_does_for_each_sequence():
    q, k, v = torch.ones(2, 1, 1), torch.zeros(128, 1, 1, 1), torch.full((128, 1, 1, 1), 10.0)
    wide = torch.zeros(2, 3, 2)  # a sequence's result has room for three heads of two numbers
    table, seq_lens = torch.arange(128, dtype=torch.int32).expand(2, 128), torch.tensor([128, 70], dtype=torch.int32)
    paged_decode(q, k, v, table.contiguous(), seq_lens, 1.0, num_splits=2, out=wide[:, :1, :1])
    expect_close(wide[:, :, 0], torch.tensor([[10.0, 0, 0], [10.0, 0, 0]]))
