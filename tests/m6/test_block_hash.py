"""The names of blocks: what they depend on, and that they depend on all of it."""

from __future__ import annotations

import struct
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from folovllm.core.block_hash import HashChain
from folovllm.request import SequenceData


def chain_of(token_ids: list[int], block_size: int = 4, salt: str | None = None, output: tuple[int, ...] = ()):
    return HashChain(SequenceData(token_ids, list(output)), block_size, salt)


def test_a_known_name() -> None:
    """Tokens as 64-bit integers behind the name of the block before; the root is the hash of nothing."""
    root = sha256(b"").digest()
    first = sha256(root + struct.pack("=4q", 1, 2, 3, 4)).digest()
    second = sha256(first + struct.pack("=4q", 5, 6, 7, 2**33)).digest()
    chain = chain_of([1, 2, 3, 4, 5, 6, 7, 2**33])
    assert (chain.block_hash(0), chain.block_hash(1)) == (first, second)


def test_a_salt_is_the_root_of_another_tree() -> None:
    root = sha256(b"salt" + "租户".encode()).digest()
    assert chain_of([9, 9], 2, "租户").block_hash(0) == sha256(root + struct.pack("=2q", 9, 9)).digest()


def test_names_of_different_salts_have_nothing_in_common() -> None:
    salts = [None, "", "a", "b", "salt", "saltsalt", "\ud800"]  # the last is no text: any string is a salt
    names = {chain_of([1] * 8, 4, salt).block_hash(place) for salt in salts for place in (0, 1)}
    assert len(names) == 2 * len(salts)


def test_the_same_tokens_elsewhere_have_another_name() -> None:
    chain = chain_of([1, 2, 1, 2, 1, 2], 2)
    assert len({chain.block_hash(place) for place in range(3)}) == 3


def test_every_token_before_a_block_counts() -> None:
    ways = [[1, 2, 3, 4], [0, 2, 3, 4], [1, 0, 3, 4], [2, 1, 3, 4]]
    assert len({chain_of(tokens, 2).block_hash(1) for tokens in ways}) == len(ways)


def test_what_comes_behind_a_block_does_not() -> None:
    assert chain_of([1, 2, 3, 4, 5], 2).block_hash(1) == chain_of([1, 2, 3, 4, 9, 9], 2).block_hash(1)


def test_a_last_name_can_be_asked_for_first() -> None:
    tokens = list(range(12))
    one, other = chain_of(tokens), chain_of(tokens)
    assert one.block_hash(2) == [other.block_hash(place) for place in range(3)][2]


@given(st.integers(1, 11), st.integers(1, 5))
def test_answers_are_named_like_prompts(prompt_len: int, block_size: int) -> None:
    """Wherever the prompt ends: in front of a block, in its middle, at its end."""
    tokens = list(range(100, 112))
    whole = chain_of(tokens, block_size)
    said = chain_of(tokens[:prompt_len], block_size, None, tuple(tokens[prompt_len:]))
    for place in range(len(tokens) // block_size):
        assert list(said.tokens(place)) == tokens[place * block_size : (place + 1) * block_size]
        assert said.block_hash(place) == whole.block_hash(place)


def test_names_follow_tokens_that_come_later() -> None:
    data = SequenceData([1, 2, 3])
    chain = HashChain(data, 2, None)
    chain.block_hash(0)
    data.output_token_ids += [4, 5, 6]
    assert chain.block_hash(2) == chain_of([1, 2, 3, 4, 5, 6], 2).block_hash(2)


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_fork_keeps_the_names_up_to_where_it_parts(asked_before: bool) -> None:
    parent = chain_of([1, 2, 3, 4], 2, "s", (5, 6))
    if asked_before:
        parent.block_hash(2)  # of a block that the child does not have
    child = parent.fork(SequenceData([1, 2, 3, 4], [7, 8]), num_blocks=2)
    assert child.block_hash(1) == parent.block_hash(1)
    assert child.block_hash(2) == chain_of([1, 2, 3, 4, 7, 8], 2, "s").block_hash(2) != parent.block_hash(2)


def test_names_are_computed_once() -> None:
    asked: list[bytes] = []

    def digest(data: bytes) -> bytes:
        asked.append(data)
        return sha256(data).digest()

    chain = HashChain(SequenceData(list(range(8))), 4, None, digest)
    for _ in range(3):
        chain.block_hash(1)
        chain.block_hash(0)
    assert len(asked) == 3  # the root and two blocks
    child = chain.fork(SequenceData([*range(8), 1, 2, 3, 4]), num_blocks=2)
    child.block_hash(2)
    assert len(asked) == 4 + 1  # it looks at its own root once
