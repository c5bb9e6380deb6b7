import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton
import triton.language as tl

from folovllm.attention.kernels.tile import attend_tile
from lab_judge import expect_close, invariant

NAN, INF = float("nan"), float("inf")


@triton.jit
def kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, last_seen_ptr, max_ptr, sum_ptr, acc_ptr, start, end, scale,
    TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr,
    K_TOKEN: tl.constexpr, V_TOKEN: tl.constexpr, K_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.arange(0, ROWS), tl.arange(0, 2)
    places, exist = rows[:, None] * HEAD + columns[None, :], columns[None, :] < HEAD
    q = tl.load(q_ptr + places, mask=exist, other=0.0)
    top, total = tl.full([ROWS], -float("inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, 2], tl.float32)
    for tile in tl.static_range(TILES):
        top, total, acc = attend_tile(
            q, top, total, acc, start + tile * BLOCK_N, end, tl.load(last_seen_ptr + rows), scale,
            k_ptr, v_ptr, table_ptr,
            K_BLOCK, K_TOKEN, V_BLOCK, V_TOKEN, BLOCK_SIZE, BLOCK_N, HEAD, 2,
        )  # fmt: skip
    tl.store(max_ptr + rows, top)
    tl.store(sum_ptr + rows, total)
    tl.store(acc_ptr + places, acc, mask=exist)


def attend(
    keys,
    values,
    *,
    tiles,
    tile=2,
    table=None,
    block_size=4,
    start=0,
    end=None,
    last_seen=(99,),
    dtype=torch.float32,
    query=(1,),
    scale=1.0,
    gaps=(0, 0),
    block_gaps=(0, 0),
):
    """[running_max, running_sum, acc] of `query` after some tiles of keys; a row for each of `last_seen`.

    A head is as long as the query: with a single 1 the scores are the keys. `keys` and `values` are the cache, of
    `dtype`, block after block. `gaps`: so many numbers more lie behind each token's keys, and behind its values;
    `block_gaps`: so many behind each block.
    """
    q = torch.tensor([query] * len(last_seen), dtype=torch.float32)
    k, v = (
        torch.nn.functional.pad(torch.tensor(numbers, dtype=dtype).view(len(numbers), -1), (0, gap), value=7.0)
        for numbers, gap in zip((keys, values), gaps, strict=True)
    )
    if any(block_gaps):
        k, v = (
            torch.nn.functional.pad(cache.view(len(keys) // block_size, -1), (0, gap), value=7.0)
            for cache, gap in zip((k, v), block_gaps, strict=True)
        )
    k_token, v_token = (len(query) + gap for gap in gaps)
    blocks = torch.tensor(table or range(-(-len(keys) // block_size)), dtype=torch.int32)
    state = [torch.zeros(len(last_seen)), torch.zeros(len(last_seen)), torch.zeros(len(last_seen), len(query))]
    end = len(keys) if end is None else end
    kernel[(1,)](
        q, k, v, blocks, torch.tensor(last_seen, dtype=torch.int32), *state, start, end, scale,
        TILES=tiles, ROWS=len(last_seen), BLOCK_SIZE=block_size, BLOCK_N=tile, HEAD=len(query),
        K_TOKEN=k_token, K_BLOCK=block_size * k_token + block_gaps[0],
        V_TOKEN=v_token, V_BLOCK=block_size * v_token + block_gaps[1],
    )  # fmt: skip
    return [part.tolist() if part.numel() > 1 else part.item() for part in map(torch.squeeze, state)]


@invariant(1)
def test_one_tile():
    top, total, acc = attend([1, 3], [10, 20], tiles=1)
    expect_close([top, total, acc], [3, 1 / 4 + 1, 10 / 4 + 20])


@invariant(1)
def test_nothing_is_rounded_on_the_way():
    top, total, acc = attend([1, 1.5], [10.01, 20], tiles=1, query=(1.001,), scale=1 / 1.001)
    expect_close([top, total, acc], [1.5, 1 + 2**-0.5, 20 + 2**-0.5 * 10.01])


@invariant(1)
def test_nor_is_the_query():
    top, total, acc = attend([3, 3], [10, 20], tiles=1, query=(1.001,))
    expect_close([top, total, acc], [3.003, 2, 30])


@invariant(1)
def test_scores_that_would_overflow():
    top, total, acc = attend([300, 302], [10, 20], tiles=1)
    expect_close([top, total, acc], [302, 1.25, 22.5])


@invariant(1)
def test_a_head_of_two_numbers():
    keys, values = [[1, 0], [1, 1]], [[10, 1], [20, 2]]  # with the query, scores 1 and 3
    top, total, acc = attend(keys, values, tiles=1, query=(1, 2))
    expect_close([top, total, *acc], [3, 1.25, 22.5, 2.25])


@invariant(1)
def test_a_score_is_the_product_times_the_scale():
    top, total, acc = attend([4, 12], [10, 20], tiles=1, scale=0.25)  # scores 1 and 3
    expect_close([top, total, acc], [3, 1.25, 22.5])


@invariant(2)
def test_a_second_tile_with_a_greater_score():
    top, total, acc = attend([1, 3, 2, 5], [10, 20, 30, 40], tiles=2)
    expect_close([top, total, acc], [5, 23 / 16, 790 / 16])


@invariant(2)
def test_a_second_tile_whose_scores_are_smaller():
    top, total, acc = attend([2, 5, 1, 3], [30, 40, 10, 20], tiles=2)
    expect_close([top, total, acc], [5, 23 / 16, 790 / 16])


@invariant(3)
def test_a_tile_that_spans_blocks():
    cache, values = [0, 0, 2, 5, 1, 3], [0, 0, 30, 40, 10, 20]
    top, total, acc = attend(cache, values, tiles=1, tile=4, table=[2, 1], block_size=2, end=4)
    expect_close([top, total, acc], [5, 23 / 16, 790 / 16])


@invariant(3)
def test_a_tile_inside_of_a_block():
    cache, values = [0, 0, 0, 0, 1, 3, 2, 5], [0, 0, 0, 0, 10, 20, 30, 40]
    top, total, acc = attend(cache, values, tiles=2, tile=2, table=[1], block_size=4, end=4)
    expect_close([top, total, acc], [5, 23 / 16, 790 / 16])


@invariant(3)
def test_keys_and_values_with_strides_of_their_own():
    top, total, acc = attend([1, 3, 2, 5], [10, 20, 30, 40], tiles=2, block_size=2, gaps=(1, 2))
    expect_close([top, total, acc], [5, 23 / 16, 790 / 16])


@invariant(3)
def test_blocks_that_do_not_touch():
    keys, values = [2, 5, 1, 3], [30, 40, 10, 20]
    top, total, acc = attend(keys, values, tiles=2, table=[1, 0], block_size=2, block_gaps=(1, 3))
    expect_close([top, total, acc], [5, 23 / 16, 790 / 16])


@invariant(3)
def test_a_tile_that_begins_in_the_middle_of_a_block():
    cache, values = [9, 1, 3, 2, 5, 9], [0, 10, 20, 30, 40, 0]
    top, total, acc = attend(cache, values, tiles=1, tile=4, block_size=2, start=1, end=5)
    expect_close([top, total, acc], [5, 23 / 16, 790 / 16])


@invariant(4)
def test_what_is_behind_the_end_weighs_nothing():
    top, total, acc = attend([-1, -3, -9, -9], [10, 20, 30, 40], tiles=1, tile=4, end=2)
    expect_close([top, total, acc], [-1, 1.25, 15])


@invariant(4)
def test_however_small_the_scores_before_it_are():
    top, total, acc = attend([-20000, 1], [10, 20], tiles=1, end=1)
    expect_close([top, total, acc], [-20000, 1, 10])


@invariant(4)
def test_what_is_behind_the_end_is_not_read():
    top, total, acc = attend([1, 3, NAN, NAN], [10, 20, NAN, INF], tiles=1, tile=4, end=2)
    expect_close([top, total, acc], [3, 1.25, 22.5])


@invariant(5)
def test_a_row_sees_nothing_behind_its_own_position():
    top, total, acc = attend([1, 3, 2, 5], [10, 20, 30, 40], tiles=1, tile=4, last_seen=(0, 1, 2, 3))
    expect_close(top, [1, 3, 3, 5])
    expect_close(total, [1, 1.25, 1.75, 23 / 16])
    expect_close(acc, [10, 22.5, 37.5, 790 / 16])


@invariant(5)
def test_however_small_the_score_at_its_own_position_is():
    top, total, acc = attend([-20000, 1], [10, 20], tiles=1, last_seen=(0,))
    expect_close([top, total, acc], [-20000, 1, 10])


@invariant(6)
def test_a_cache_of_fewer_bits():
    top, total, acc = attend([1, 3, 2, 5], [10, 20, 30, 40], tiles=2, dtype=torch.float16)
    expect_close([top, total, acc], [5, 23 / 16, 790 / 16])


@invariant(6)
def test_weights_have_the_bits_of_q():
    top, total, acc = attend([1, 1.5], [10, 20], tiles=1, dtype=torch.float16)
    expect_close([top, total, acc], [1.5, 1 + 2**-0.5, 20 + 2**-0.5 * 10])
