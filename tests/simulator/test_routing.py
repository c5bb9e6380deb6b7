"""Routers: what each rule promises, whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from folovllm.core.block_hash import HashChain
from folovllm.request import SequenceData
from folovllm.serving.routing import DEPTH, ROUTERS, LeastLoaded, PrefixAffinity, RoundRobin, Router, prefix_hashes

NAMES = ["a", "b", "c", "d"]
IDLE = dict.fromkeys(NAMES, 0)
loads = st.fixed_dictionaries({name: st.integers(0, 40) for name in NAMES})
keys = st.binary(min_size=32, max_size=32)


def among(names: list[str], router: Router) -> Router:
    for name in names:
        router.add_replica(name)
    return router


def test_round_robin_gives_each_its_turn():
    router = among(NAMES, RoundRobin())
    assert [router.choose([], IDLE) for _ in range(6)] == ["a", "b", "c", "d", "a", "b"]


def test_round_robin_keeps_its_turn_when_one_leaves():
    router = among(NAMES, RoundRobin())
    assert [router.choose([], IDLE) for _ in range(2)] == ["a", "b"]
    router.remove_replica("a")
    assert [router.choose([], IDLE) for _ in range(3)] == ["c", "d", "b"]


@given(loads)
def test_least_loaded_takes_none_that_another_undercuts(loads):
    assert loads[among(NAMES, LeastLoaded()).choose([], loads)] == min(loads.values())


@given(keys, loads, st.integers(0, 20))
def test_affinity_never_exceeds_its_margin(key, loads, margin):
    assert loads[among(NAMES, PrefixAffinity(margin)).choose([key], loads)] <= min(loads.values()) + margin


@given(keys)
def test_affinity_is_the_same_in_every_router(key):
    one, other = among(NAMES, PrefixAffinity()), among(NAMES[::-1], PrefixAffinity())
    assert one.choose([key], IDLE) == other.choose([key], IDLE)


@given(keys)
def test_only_the_keys_of_a_replica_that_leaves_move(key):
    router = among(NAMES, PrefixAffinity())
    before = router.choose([key], IDLE)
    router.remove_replica("b")
    assert before == "b" or router.choose([key], IDLE) == before


@given(keys)
def test_a_replica_that_joins_takes_keys_and_moves_no_other(key):
    router = among(NAMES, PrefixAffinity())
    before = router.choose([key], IDLE)
    router.add_replica("e")
    assert router.choose([key], {**IDLE, "e": 0}) in (before, "e")


def test_keys_spread_over_all_replicas():
    router = among(NAMES, PrefixAffinity())
    chosen = [router.choose([bytes([number] * 32)], IDLE) for number in range(200)]
    assert all(25 <= chosen.count(name) <= 75 for name in NAMES)


def test_overflow_of_one_key_goes_to_one_other_replica():
    router = among(NAMES, PrefixAffinity(margin=2))
    key = bytes(32)
    home = router.choose([key], IDLE)
    seconds = {router.choose([key], {**IDLE, home: crowd}) for crowd in range(3, 20)}
    assert len(seconds) == 1
    assert home not in seconds


def test_the_first_blocks_alone_decide():
    router = among(NAMES, PrefixAffinity())
    hashes = [bytes([number] * 32) for number in range(DEPTH + 3)]
    assert router.choose(hashes, IDLE) == router.choose(hashes[:DEPTH], IDLE)


def test_a_prompt_without_a_full_block_goes_to_the_least_busy():
    assert among(NAMES, PrefixAffinity()).choose([], {**IDLE, "a": 1, "b": 1}) == "c"


def test_prefix_hashes_are_those_of_the_cache():
    tokens = list(range(40))
    chain = HashChain(SequenceData(tokens), 16, "salt")
    assert prefix_hashes(tokens, 16, "salt") == [chain.block_hash(0), chain.block_hash(1)]


@pytest.mark.parametrize("kind", ROUTERS)
def test_no_replica_is_one_clear_error(kind):
    with pytest.raises(ValueError, match="replicas must be at least one"):
        ROUTERS[kind]().choose([], {})


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_missing_load_is_named(kind):
    with pytest.raises(ValueError, match="loads must have a number for each replica, b too"):
        among(["a", "b"], ROUTERS[kind]()).choose([], {"a": 1})


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: among(["a", "a"], RoundRobin()), "replica must be a new name, got 'a'"),
        (lambda: among(["a"], RoundRobin()).remove_replica("b"), "replica must be one of a, got 'b'"),
        (lambda: PrefixAffinity(margin=-1), "margin must be non-negative"),
    ],
)
def test_wrong_values_are_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()
