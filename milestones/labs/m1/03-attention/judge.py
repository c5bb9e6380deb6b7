from math import log

import torch

from folovllm.attention.backends.dense import DenseBackend
from folovllm.attention.metadata import AttentionMetadata
from lab_judge import expect, expect_close, invariant


def one_head(*numbers):
    """[len(numbers), 1, 1] for queries; `.transpose(0, 1)` makes keys or values of it."""
    return torch.tensor(numbers).view(-1, 1, 1)


def metadata(query_lens, seq_lens, blocks):
    return AttentionMetadata(
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).int(),
        seq_lens=torch.tensor(seq_lens).int(),
        slot_mapping=torch.zeros(sum(query_lens), dtype=torch.int64),  # written already
        block_tables=torch.tensor(blocks).view(-1, 1).int(),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
    )


@invariant(1)
def test_equal_scores_make_a_mean():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    q, k, v = one_head(0.0), one_head(1.0, 2.0, 3.0), one_head(1.0, 2.0, 6.0)
    out = dense._attend(q, k.transpose(0, 1), v.transpose(0, 1))
    expect_close(out.flatten(), [3.0])


@invariant(1)
def test_each_call_has_its_own_mean():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    q, k = one_head(0.0), one_head(1.0, 2.0).transpose(0, 1)
    first, second = (dense._attend(q, k, v.transpose(0, 1)) for v in (one_head(1.0, 3.0), one_head(5.0, 9.0)))
    expect_close([first.item(), second.item()], [2.0, 7.0])


@invariant(1)
def test_a_score_is_a_logarithm_of_a_weight():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    q, k, v = one_head(log(3)), one_head(0.0, 1.0), one_head(0.0, 4.0)  # weights 1 : 3
    out = dense._attend(q, k.transpose(0, 1), v.transpose(0, 1))
    expect_close(out.flatten(), [3.0])


@invariant(1)
def test_a_large_score_does_not_overflow():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    q, k, v = one_head(100.0), one_head(1.0, 2.0), one_head(0.0, 4.0)  # scores 100 and 200
    out = dense._attend(q, k.transpose(0, 1), v.transpose(0, 1))
    expect_close(out.flatten(), [4.0])


@invariant(2)
def test_the_scale_comes_before_the_softmax():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=0.5)
    q, k, v = one_head(log(9)), one_head(0.0, 1.0), one_head(0.0, 4.0)  # again 1 : 3
    out = dense._attend(q, k.transpose(0, 1), v.transpose(0, 1))
    expect_close(out.flatten(), [3.0])


@invariant(3)
def test_a_prompt_sees_no_token_behind():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    q, k, v = one_head(0.0, 0.0, 0.0), one_head(1.0, 2.0, 3.0), one_head(3.0, 9.0, 0.0)
    out = dense._attend(q, k.transpose(0, 1), v.transpose(0, 1))
    expect_close(out.flatten(), [3.0, 6.0, 4.0])


@invariant(3)
def test_queries_in_the_middle_see_what_came_before():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    q, k, v = one_head(0.0, 0.0), one_head(1.0, 2.0, 3.0, 4.0), one_head(4.0, 0.0, 2.0, 6.0)
    out = dense._attend(q, k.transpose(0, 1), v.transpose(0, 1))
    expect_close(out.flatten(), [2.0, 3.0])


@invariant(3)
def test_what_is_hidden_weighs_nothing_however_large_its_score():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    q, k, v = one_head(100.0, 0.0), one_head(-200.0, 2.0), one_head(3.0, 9.0)  # scores -20,000 and, hidden, 200
    out = dense._attend(q, k.transpose(0, 1), v.transpose(0, 1))
    expect_close(out.flatten(), [3.0, 6.0])


@invariant(4)
def test_neighbouring_query_heads_share_a_kv_head():
    dense = DenseBackend(num_heads=6, num_kv_heads=2, head_size=1, scale=1.0)
    q = torch.zeros(1, 6, 1)
    k = v = torch.tensor([1.0, 2.0]).view(2, 1, 1)  # one token: 1 in KV head 0, 2 in KV head 1
    out = dense._attend(q, k, v)
    expect_close(out.flatten(), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0])


@invariant(4)
def test_so_they_do_for_two_queries():
    dense = DenseBackend(num_heads=4, num_kv_heads=2, head_size=1, scale=1.0)
    q = torch.zeros(2, 4, 1)
    k = v = torch.tensor([[1.0, 3.0], [10.0, 30.0]]).unsqueeze(-1)  # two tokens in each KV head
    out = dense._attend(q, k, v)
    expect_close(out.squeeze(-1), [[1.0, 1.0, 10.0, 10.0], [2.0, 2.0, 20.0, 20.0]])


@invariant(5)
def test_nothing_behind_the_sequence_is_read():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    cache = torch.full((2, 1, 8, 1, 1), float("nan"))
    cache[:, 0, :3] = one_head(1.0, 2.0, 6.0)
    out = dense.forward(one_head(0.0), cache, metadata([1], seq_lens=[3], blocks=[0]))
    expect_close(out.flatten(), [3.0])


@invariant(5)
def test_each_sequence_reads_its_own_block():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    cache = torch.full((2, 2, 4, 1, 1), float("nan"))
    cache[:, 1, :2] = one_head(2.0, 4.0)  # the first sequence, a prompt of two tokens
    cache[:, 0, :3] = one_head(10.0, 20.0, 60.0)  # the second decodes
    out = dense.forward(one_head(0.0, 0.0, 0.0), cache, metadata([2, 1], seq_lens=[2, 3], blocks=[1, 0]))
    expect_close(out.flatten(), [2.0, 3.0, 30.0])


@invariant(5)
def test_the_cache_is_only_read():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=0.5)
    nan = float("nan")
    cache = torch.tensor([1.0, 2.0, 3.0, nan, 4.0, 5.0, 6.0, nan]).view(2, 1, 4, 1, 1)
    dense.forward(one_head(1.0, 2.0), cache, metadata([2], seq_lens=[2], blocks=[0]))
    expect_close(cache.flatten(), [1.0, 2.0, 3.0, nan, 4.0, 5.0, 6.0, nan])


@invariant(5)
def test_each_layer_has_a_result_of_its_own():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    caches = [torch.full((2, 1, 4, 1, 1), value) for value in (3.0, 8.0)]
    outs = [dense.forward(one_head(0.0), cache, metadata([1], seq_lens=[2], blocks=[0])) for cache in caches]
    expect_close([out.item() for out in outs], [3.0, 8.0])


@invariant(5)
def test_it_equals_attention_written_out_in_float64():
    torch.manual_seed(0)
    dense = DenseBackend(num_heads=4, num_kv_heads=2, head_size=8, scale=8**-0.5)
    cache, q = torch.randn(2, 1, 6, 2, 8), torch.randn(3, 4, 8)
    out = dense.forward(q, cache, metadata([3], seq_lens=[6], blocks=[0]))
    expected = torch.empty_like(q, dtype=torch.float64)
    for j in range(3):
        for head in range(4):
            k, v = cache[:, 0, : 4 + j, head // 2].double()
            expected[j, head] = (k @ q[j, head].double() * 8**-0.5).softmax(0) @ v
    expect_close(out, expected)


@invariant(6)
def test_the_dtype_is_that_of_q():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
    cache = torch.ones(2, 1, 4, 1, 1, dtype=torch.bfloat16)
    out = dense.forward(one_head(0.0), cache, metadata([1], seq_lens=[2], blocks=[0]))
    expect(out.dtype, torch.float32)


@invariant(6)
def test_the_query_is_rounded_to_the_dtype_of_the_cache():
    dense = DenseBackend(num_heads=1, num_kv_heads=1, head_size=2, scale=1.0)
    q = torch.tensor([1.001953125, 1.0]).view(1, 1, 2)  # in bfloat16 both are 1
    cache = torch.tensor([[[256.0, -256.0], [0.0, 0.0]], [[4.0, 4.0], [0.0, 0.0]]]).bfloat16().view(2, 1, 2, 1, 2)
    out = dense.forward(q, cache, metadata([1], seq_lens=[2], blocks=[0]))  # both scores are 0
    expect_close(out.flatten(), [2.0, 2.0])
