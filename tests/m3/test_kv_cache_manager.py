"""Block tables, worked by hand: growth, forks, copies on write, swapping. Block size 4."""

from __future__ import annotations

import pytest

from folovllm.core.kv_cache_manager import KVCacheManager, common_prefix
from folovllm.request import Request, Sequence, SequenceData, SequenceStatus
from folovllm.sampling_params import SamplingParams


def make_seq(prompt: int = 4, output: list[int] | None = None, name: str = "r-0") -> Sequence:
    return Sequence(name, "r", SequenceData([9] * prompt, list(output or [])), SamplingParams())


def begins_with_a_siblings(kv: KVCacheManager, seq: Sequence, *siblings: Sequence) -> bool:
    """Whether `seq` is given blocks of one of these, which run."""
    request = Request("r", None, seq.data.prompt_token_ids, SamplingParams())
    request.sequences = {sibling.seq_id: sibling for sibling in siblings}
    for sibling in siblings:
        sibling.status = SequenceStatus.RUNNING
    return kv.get_computed_blocks(request, seq)


def compute(kv: KVCacheManager, seq: Sequence, num_tokens: int, keep_free: int = 0) -> list[tuple[int, int]] | None:
    """Make room for the tokens, and count them as computed."""
    pairs = kv.allocate_slots([(seq, num_tokens)], keep_free)
    if pairs is not None:
        seq.num_computed_tokens += num_tokens
    return pairs


def test_a_table_grows_block_by_block():
    kv = KVCacheManager(8, 4)
    seq = make_seq(5)
    assert compute(kv, seq, 5) == []
    assert seq.block_ids == [1, 2]
    for length, table in ((6, [1, 2]), (7, [1, 2]), (8, [1, 2]), (9, [1, 2, 3])):
        seq.data.add_token_id(7)
        assert compute(kv, seq, 1) == []
        assert (seq.num_computed_tokens, seq.block_ids) == (length, table)


def test_keep_free_leaves_so_many():
    kv = KVCacheManager(4, 4)
    seq = make_seq(12)
    assert compute(kv, seq, 12, keep_free=2) is None
    assert compute(kv, seq, 12, keep_free=1) == []


def test_allocation_is_for_all_or_for_none():
    kv = KVCacheManager(3, 4)
    a, b = make_seq(8, name="a-0"), make_seq(8, name="b-0")
    assert kv.allocate_slots([(a, 8), (b, 8)]) is None
    assert (a.block_ids, b.block_ids, kv.pool.num_free) == ([], [], 3)
    assert kv.allocate_slots([(a, 8), (b, 4)]) == []
    assert (a.block_ids, b.block_ids) == ([1, 2], [3])


def family(kv: KVCacheManager, size: int, num_tokens: int) -> list[Sequence]:
    """A computed sequence of that many tokens and size - 1 forks of it."""
    seqs = [make_seq(num_tokens, name=f"r-{i}") for i in range(size)]
    compute(kv, seqs[0], num_tokens)
    for child in seqs[1:]:
        kv.fork(seqs[0], child, num_tokens)
    return seqs


def test_a_fork_shares_and_takes_nothing():
    kv = KVCacheManager(8, 4)
    parent, child = family(kv, 2, 6)
    assert child.block_ids == parent.block_ids == [1, 2]
    assert child.block_ids is not parent.block_ids
    assert child.num_computed_tokens == 6
    assert (kv.pool.num_free, kv.pool.num_shared) == (6, 2)


def test_the_first_writer_copies_and_the_last_one_keeps():
    kv = KVCacheManager(8, 4)
    a, b, c = family(kv, 3, 6)
    assert compute(kv, a, 1) == [(2, 3)]
    assert compute(kv, b, 1) == [(2, 4)]
    assert compute(kv, c, 1) == []
    assert (a.block_ids, b.block_ids, c.block_ids) == ([1, 3], [1, 4], [1, 2])
    assert [kv.pool.refs(block) for block in (1, 2, 3, 4)] == [3, 1, 1, 1]


def test_a_full_block_is_shared_for_ever():
    kv = KVCacheManager(8, 4)
    a, b = family(kv, 2, 8)
    assert compute(kv, a, 1) == compute(kv, b, 1) == []
    assert (a.block_ids, b.block_ids) == ([1, 2, 3], [1, 2, 4])
    assert kv.pool.num_shared == 2


@pytest.mark.parametrize(
    ("size", "writers", "needed"),
    [(1, 1, 0), (2, 1, 1), (2, 2, 1), (3, 2, 2), (3, 3, 2), (5, 5, 4)],
    ids=["alone", "one of two", "both", "two of three", "all three", "all five"],
)
def test_the_exact_need_of_writers_of_one_shared_block(size, writers, needed):
    """Each copies, save the last if nobody else names the block."""
    kv = KVCacheManager(20, 4)
    seqs = family(kv, size, 6)
    wants = [(seq, 1) for seq in seqs[:writers]]
    assert kv._blocks_needed(wants) == needed
    before = kv.pool.num_free
    assert kv.allocate_slots(wants, keep_free=before - needed + 1) is None
    pairs = kv.allocate_slots(wants, keep_free=before - needed)
    assert pairs is not None
    assert (len(pairs), before - kv.pool.num_free) == (needed, needed)


def test_a_copy_and_a_new_block_for_one_writer():
    kv = KVCacheManager(8, 4)
    parent, child = family(kv, 2, 6)
    assert kv._blocks_needed([(child, 4)]) == 2  # tokens 6 .. 9: two in the copy, two in a new block
    assert compute(kv, child, 4) == [(2, 3)]
    assert (parent.block_ids, child.block_ids) == ([1, 2], [1, 3, 4])


@pytest.mark.parametrize(
    ("num_tokens", "table"), [(0, []), (1, [1]), (4, [1]), (5, [1, 2]), (8, [1, 2]), (9, [1, 2, 3])]
)
def test_a_fork_at_any_length(num_tokens, table):
    kv = KVCacheManager(8, 4)
    parent, child = make_seq(10), make_seq(10, name="r-1")
    compute(kv, parent, 10)
    kv.fork(parent, child, num_tokens)
    assert (child.block_ids, child.num_computed_tokens) == (table, num_tokens)
    kv.check_invariants([parent, child], [])


def test_a_fork_in_the_middle_copies_before_it_writes_over_what_its_parent_has():
    kv = KVCacheManager(8, 4)
    parent, child = make_seq(10), make_seq(10, name="r-1")
    compute(kv, parent, 10)
    kv.fork(parent, child, 6)
    assert compute(kv, child, 4) == [(2, 4)]
    assert child.block_ids == [1, 4, 5]


def test_the_common_prefix_counts_the_prompt_and_what_was_drawn_alike():
    assert common_prefix(make_seq(4, [1, 2, 3]), make_seq(4, [1, 2, 9, 3])) == 6
    assert common_prefix(make_seq(4, [5]), make_seq(4, [6])) == 4
    assert common_prefix(make_seq(4, [5]), make_seq(4, [5, 6])) == 5


def test_the_longest_beginning_among_the_siblings_is_taken():
    kv = KVCacheManager(16, 4)
    near, far = make_seq(4, [1, 2, 3, 4], "r-0"), make_seq(4, [1, 9, 9, 9], "r-1")
    compute(kv, near, 8)
    compute(kv, far, 8)
    seq = make_seq(4, [1, 2, 3, 8], "r-2")
    assert begins_with_a_siblings(kv, seq, far, near)
    assert (seq.num_computed_tokens, seq.block_ids) == (7, near.block_ids)


def test_only_what_a_sibling_has_computed_is_taken():
    kv = KVCacheManager(16, 4)
    sibling = make_seq(4, [1, 2, 3, 4])
    compute(kv, sibling, 5)
    seq = make_seq(4, [1, 2, 3, 4, 5], "r-1")
    assert begins_with_a_siblings(kv, seq, sibling)
    assert (seq.num_computed_tokens, seq.block_ids) == (5, sibling.block_ids[:2])


def test_one_token_is_left_to_ask_with():
    kv = KVCacheManager(16, 4)
    sibling, seq = make_seq(8), make_seq(8, name="r-1")
    compute(kv, sibling, 8)
    assert begins_with_a_siblings(kv, seq, sibling)
    assert seq.num_computed_tokens == 7


def test_siblings_that_have_computed_nothing_have_nothing_to_share():
    kv = KVCacheManager(16, 4)
    seq = make_seq(4, name="r-1")
    assert not begins_with_a_siblings(kv, seq, make_seq(4))
    assert not begins_with_a_siblings(kv, seq)
    assert (seq.block_ids, seq.num_computed_tokens) == ([], 0)


def test_what_is_shared_stays_shared_in_the_swap_space_and_after_it():
    kv = KVCacheManager(8, 4, num_swap_blocks=6)
    a, b = family(kv, 2, 6)
    compute(kv, a, 1)
    a.data.add_token_id(7)  # a: [1, 3], b: [1, 2]
    assert kv.swap_out([a, b]) == [(1, 1), (3, 2), (2, 3)]
    assert (a.block_ids, b.block_ids) == ([1, 2], [1, 3])
    assert (kv.pool.num_free, kv.swap_pool.num_free, kv.swap_pool.num_shared) == (8, 3, 1)
    kv.check_invariants([], [a, b])
    assert kv.swap_in([a, b]) == [(1, 4), (2, 5), (3, 6)]
    assert (a.block_ids, b.block_ids) == ([4, 5], [4, 6])
    assert (kv.pool.num_shared, kv.swap_pool.num_free) == (1, 6)
    kv.check_invariants([a, b], [])


def test_one_of_two_that_share_goes_out_alone():
    kv = KVCacheManager(8, 4, num_swap_blocks=6)
    a, b = family(kv, 2, 6)
    assert kv.swap_out([b]) == [(1, 1), (2, 2)]
    assert (a.block_ids, b.block_ids, kv.pool.num_free) == ([1, 2], [1, 2], 6)
    kv.check_invariants([a], [b])


def test_a_full_swap_space_takes_nobody():
    kv = KVCacheManager(8, 4, num_swap_blocks=2)
    a, b = family(kv, 2, 6)
    compute(kv, a, 1)
    assert kv.swap_out([a, b]) is None  # three distinct blocks
    assert (a.block_ids, b.block_ids, kv.swap_pool.num_free) == ([1, 3], [1, 2], 2)
    assert kv.swap_out([b]) == [(1, 1), (2, 2)]


def test_swapping_in_needs_room_for_the_next_write_of_each():
    """a and b share a half full block: together they need it, and one copy of it."""
    kv = KVCacheManager(6, 4, num_swap_blocks=6)
    seqs = family(kv, 2, 6)
    kv.swap_out(seqs)
    assert kv.swap_in(seqs, keep_free=4) is None
    assert kv.swap_in(seqs, keep_free=3) is not None  # one full block, and one each
    assert len(kv.allocate_slots([(seq, 1) for seq in seqs]) or []) == 1
    assert kv.pool.num_free == 3


def test_a_swapped_sequence_is_freed_where_it_is():
    kv = KVCacheManager(8, 4, num_swap_blocks=6)
    a, b = family(kv, 2, 6)
    kv.swap_out([a, b])
    kv.free_swapped(a)
    assert (a.block_ids, kv.swap_pool.num_free) == ([], 4)
    kv.free_swapped(b)
    assert (kv.pool.num_free, kv.swap_pool.num_free) == (8, 6)


@pytest.mark.parametrize("harm", ["longer", "shorter"])
def test_the_invariants_see_a_table_of_the_wrong_length(harm):
    kv = KVCacheManager(8, 4)
    seq = make_seq(6)
    compute(kv, seq, 6)
    kv.check_invariants([seq], [])
    if harm == "longer":
        seq.block_ids += kv.pool.get_new_blocks(1)
    else:
        kv.pool.free_blocks([seq.block_ids.pop()])
    with pytest.raises(RuntimeError, match=r"^sequence r-0 has \d blocks for 6 of 6 tokens$"):
        kv.check_invariants([seq], [])
