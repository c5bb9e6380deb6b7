"""Should two contents ever get one name: the second is not found, and nobody reads what is not his.

Names are cut to one byte here, or to none: nothing depends on sha256 but how much is found.
"""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm.core.block_hash import Digest, digest_sha256
from folovllm.request import Sequence
from tests.m3.support import TOKEN
from tests.m6.support import CachingDesk, end, make_manager, make_seq, take_cached

SIZE = 4


def one_byte(data: bytes) -> bytes:
    return sha256(data).digest()[:1]


def one_name(data: bytes) -> bytes:
    return b"x"


@settings(max_examples=80)
@given(
    st.sampled_from([one_byte, one_name]),
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([[1] * SIZE, [2] * SIZE, [1, 2, 1, 2]]), min_size=1, max_size=4),
            st.sampled_from([None, "a", "b"]),
            st.booleans(),
        ),
        min_size=2,
        max_size=20,
    ),
    st.integers(8, 24),
)
def test_equal_names_of_other_content_are_never_taken_for_each_other(
    digest: Digest, asked: list[tuple[list[list[int]], str | None, bool]], num_blocks: int
) -> None:
    """A block's whole past and its salt are written down beside the manager; every block taken must have that past."""
    kv = make_manager(num_blocks, digest=digest)
    holds: dict[int, tuple[str | None, tuple[int, ...]]] = {}
    alive: list[Sequence] = []
    for blocks, salt, stays in asked:
        seq = make_seq([*(token_id for block in blocks for token_id in block), 3])
        cached = take_cached(kv, seq, salt)
        num_taken = len(seq.block_ids)
        assert cached == num_taken * SIZE
        while kv.allocate_slots([(seq, seq.get_len() - cached)]) is None:
            end(kv, alive.pop(0))
        for place in range(num_taken, len(seq.block_ids)):
            holds[seq.block_ids[place]] = (salt, tuple(seq.get_token_ids()[: (place + 1) * SIZE]))
        seq.num_computed_tokens = seq.get_len()
        kv.cache_blocks(seq)
        for place, block_id in enumerate(seq.block_ids):  # what it took at first, and what it took instead of its own
            assert holds[block_id] == (salt, tuple(seq.get_token_ids()[: (place + 1) * SIZE]))
        alive.append(seq)
        if not stays:
            end(kv, alive.pop())
        kv.check_invariants(alive, [])


def test_a_weak_name_costs_hits_and_nothing_else() -> None:
    """The same load with good names and bad ones: the same tokens are asked for, fewer are found."""
    hits = []
    for digest in (digest_sha256, one_byte, one_name):
        desk = CachingDesk(60, digest=digest)
        for i in range(30):
            desk.add(str(i), [*[TOKEN] * 8, *[i % 5] * 8, 1], max_tokens=2)
        desk.run()
        hits.append(desk.kv.num_hits)
        assert desk.kv.num_queries == 30 * 17
    assert hits[0] >= hits[1] > hits[2] > 0
