from folovllm.core.block_pool import BlockPool
from folovllm.core.kv_offload import HostBlock, OffloadingManager, PromotingPool
from lab_judge import expect, invariant


def tiers(num_blocks, *in_host):
    """A pool, and host memory with blocks a, b, c … of a prompt: each behind the one before it, with one token."""
    offload = OffloadingManager(0, 8)
    for key in in_host:
        parent = b"" if key == b"a" else bytes([key[0] - 1])
        offload.known[key] = HostBlock(offload.free.pop(0), parent, (key[0],))  # 8, 7, 6 …
    return PromotingPool(BlockPool(num_blocks, enable_caching=True), offload)


def cache(tiers, key, parent=0):
    """Put a block into the pool that no sequence uses."""
    (block,) = tiers.pool.get_new_blocks(1)
    tiers.pool.cache_block(block, key, parent, (key[0],), None)
    tiers.pool.free_blocks([block])
    return block


def ask(tiers, key, parent=0):
    return tiers.get_cached_block(key, parent, (key[0],), None)


@invariant(1)
def test_what_the_pool_has_is_held():
    made = tiers(3)
    block = cache(made, b"a")
    expect(ask(made, b"a"), block)
    expect(made.pool.refs(block), 1)
    expect(made.promoted, set())


@invariant(1)
def test_what_the_pool_has_is_not_loaded():
    made = tiers(3, b"a")
    block = cache(made, b"a")
    expect(ask(made, b"a"), block)
    expect((made.promoted, made.offload.loads), (set(), {}))


@invariant(1)
def test_with_another_salt_it_is_another_block():
    made = tiers(3)
    (block,) = made.pool.get_new_blocks(1)
    made.pool.cache_block(block, b"a", 0, (97,), "salt")
    expect(ask(made, b"a"), None)
    expect(made.get_cached_block(b"a", 0, (97,), "salt"), block)


@invariant(2)
def test_what_host_memory_has_gets_a_block():
    made = tiers(3, b"a")
    expect(ask(made, b"a"), 1)
    expect(made.pool.get_cached_block(b"a", 0, (97,), None), 1)
    expect(made.pool.refs(1), 1)
    expect(made.promoted, {1})


@invariant(2)
def test_its_load_is_noted():
    made = tiers(3, b"a")
    block = ask(made, b"a")
    expect(made.offload.loads, {block: (made.offload.known[b"a"].block, b"a")})


@invariant(2)
def test_it_is_cached_with_its_salt():
    made = tiers(3, b"a")
    block = made.get_cached_block(b"a", 0, (97,), "salt")
    expect(made.pool.get_cached_block(b"a", 0, (97,), "salt"), block)
    expect(made.pool.get_cached_block(b"a", 0, (97,), None), None)


@invariant(2)
def test_all_that_come_in_are_promoted():
    made, tokens = tiers(5, b"a", b"b"), [97]
    first = made.get_cached_block(b"a", 0, tokens, None)
    expect(tokens, [97])
    second = made.get_cached_block(b"b", first, [98], None)
    ask(made, b"a")
    expect(made.promoted, {first, second})
    expect(made.offload.loads, {first: (8, b"a"), second: (7, b"b")})
    expect(made.offload.num_hits, 0)


@invariant(2)
def test_behind_its_parent_if_possible():
    made = tiers(9, b"b")
    made.pool.get_new_blocks(4)
    parent = cache(made, b"a")
    made.pool.touch([parent])
    made.pool.free_blocks([2])
    expect(ask(made, b"b", parent), parent + 1)


@invariant(2)
def test_another_parent_is_another_block():
    made = tiers(5, b"b")
    parent = cache(made, b"x")
    expect(ask(made, b"b", parent), None)


@invariant(3)
def test_neither_has_it():
    made = tiers(3, b"a")
    expect(made.get_cached_block(b"z", 0, (122,), None), None)
    expect((made.pool.num_free, made.held, made.offload.loads), (3, [], {}))


@invariant(3)
def test_nothing_is_evicted_for_what_neither_has():
    made = tiers(2)
    blocks = [cache(made, b"a"), cache(made, b"x")]
    made.get_cached_block(b"z", 0, (122,), None)
    expect(sorted(made.pool.cached_blocks()), sorted(blocks))


@invariant(3)
def test_no_block_is_free():
    made = tiers(2, b"a")
    made.pool.get_new_blocks(2)
    expect(ask(made, b"a"), None)
    expect((made.held, made.promoted, made.offload.loads), ([], set(), {}))


@invariant(4)
def test_a_hash_that_belongs_to_other_tokens():
    made = tiers(3, b"a")
    (block,) = made.pool.get_new_blocks(1)
    made.pool.cache_block(block, b"a", 0, (5,), None)
    expect(ask(made, b"a"), None)
    expect((made.pool.num_free, made.held, made.promoted, made.offload.loads), (2, [], set(), {}))
    expect(made.offload.sources, set())


@invariant(5)
def test_a_hit_is_not_evicted_by_the_next_one():
    made = tiers(2, b"b", b"c")
    first = cache(made, b"a")
    second = ask(made, b"b", ask(made, b"a"))
    expect(ask(made, b"c", second), None)
    expect(made.held, [first, second])
    expect(made.pool.get_cached_block(b"a", 0, (97,), None), first)


@invariant(5)
def test_twice_is_held_twice():
    made = tiers(3, b"b")
    first = cache(made, b"a")
    ask(made, b"a")
    ask(made, b"a")
    second = ask(made, b"b", first)
    ask(made, b"b", first)
    expect(made.held, [first, first, second, second])
    expect([made.pool.refs(first), made.pool.refs(second)], [2, 2])


@invariant(5)
def test_all_is_given_back():
    made = tiers(3, b"b")
    cache(made, b"a")
    first = ask(made, b"a")
    ask(made, b"a")
    ask(made, b"b", first)
    expect(made.pool.num_free, 1)
    made.release()
    expect(made.pool.num_free, 3)
