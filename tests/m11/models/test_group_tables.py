"""Blocks of 4, a full group and one with a window of 6: what a sequence gives back, and what another finds, by hand."""

from __future__ import annotations

import pytest

from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams

TOKENS = list(range(1, 33))


def make_manager(*windows: int | None) -> KVCacheManager:
    return KVCacheManager(24, 4, enable_prefix_caching=True, groups=KVCacheGroups(windows, (), 4, 32))


def begin(kv: KVCacheManager, token_ids: list[int], n: int = 1) -> tuple[Request, Sequence]:
    """Let a request in, with what is found of it."""
    request = Request("r", None, token_ids, SamplingParams(n=n))
    seq = request.get_seqs()[0]
    kv.get_computed_blocks(request, seq)
    return request, seq


def go_on(kv: KVCacheManager, seq: Sequence, num_tokens: int) -> None:
    assert kv.allocate_slots([(seq, num_tokens)]) is not None
    seq.num_computed_tokens += num_tokens
    kv.cache_blocks(seq)


@pytest.fixture
def kv() -> KVCacheManager:
    """A sequence of 32 tokens and one more has come and gone. Its last query, at 32, saw keys from 27 on: the window
    group had given back blocks 5 to 0, in this order, and then 7 and 6."""
    kv = make_manager(None, 6)
    _, seq = begin(kv, TOKENS)
    go_on(kv, seq, 32)
    assert seq.tables == [list(range(1, 9)), list(range(9, 17))]
    seq.add_token_id(33)
    go_on(kv, seq, 1)
    assert seq.further_tables == [[0, 0, 0, 0, 0, 0, 15, 16, 18]]
    kv.check_invariants([seq], [])
    kv.free(seq)
    return kv


def found(kv: KVCacheManager, num_tokens: int) -> list[list[int]]:
    """The tables that a prompt of so many of the same tokens begins with."""
    _, seq = begin(kv, [*TOKENS[:num_tokens], 99])
    tables = [list(table) for table in seq.tables]
    kv.free(seq)
    return tables


def test_a_hit_needs_all_blocks_of_the_full_group_and_those_that_the_window_reaches(kv):
    """The query behind 5 blocks, at 20, sees keys from 15 on."""
    assert found(kv, 20) == [[1, 2, 3, 4, 5], [0, 0, 0, 12, 13]]


def test_a_hit_is_shorter_where_a_block_of_a_window_is_gone(kv):
    """Behind 6 blocks the window reads 4 and 5, behind 5 it reads 3 and 4, behind 4 it reads 2 and 3."""
    held = kv.pool.get_new_blocks(8 + 2)  # eight that hold nothing, then the window's blocks 5 and 4
    assert not kv.pool.is_cached(14)
    assert not kv.pool.is_cached(13)
    assert found(kv, 24) == [[1, 2, 3, 4], [0, 0, 11, 12]]
    kv.pool.free_blocks(held)
    kv.check_invariants([], [])


def test_layers_that_all_have_windows_need_no_block_before_them():
    kv = make_manager(6)
    _, seq = begin(kv, TOKENS)
    go_on(kv, seq, 32)
    kv.free(seq)
    kv.pool.get_new_blocks(16 + 1)  # those that hold nothing, then the last block of the sequence
    assert found(kv, 32) == [[0, 0, 0, 0, 0, 6, 7]]


def test_a_sibling_shares_only_what_its_windows_still_have():
    kv = KVCacheManager(24, 4, groups=KVCacheGroups((None, 6), (), 4, 32))
    request, first = begin(kv, TOKENS, n=2)
    go_on(kv, first, 32)
    first.transition(SequenceStatus.RUNNING)
    second = request.get_seqs()[1]
    assert kv.get_computed_blocks(request, second)
    assert second.tables == first.tables
    kv.free(second)
    for token_id in range(9):  # the query at 40 sees keys from 35 on
        first.add_token_id(token_id)
        go_on(kv, first, 1)
    assert not kv.get_computed_blocks(request, second)


def test_equal_blocks_of_one_step_are_kept_once_in_each_group():
    kv = make_manager(None, 6)
    (_, a), (_, b) = begin(kv, TOKENS[:8]), begin(kv, TOKENS[:8])
    go_on(kv, a, 8)
    go_on(kv, b, 8)
    assert a.tables == b.tables == [[1, 2], [3, 4]]
    kv.check_invariants([a, b], [])
    assert kv.pool.num_used == 4
