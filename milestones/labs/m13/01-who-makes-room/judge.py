import pytest

from folovllm.core.kv_offload import HostBlock, OffloadingManager
from lab_judge import expect, invariant


def full():
    """Host blocks 1 to 3 hold a, b and c, which were used in this order."""
    made = OffloadingManager(0, 3)
    made.free = []
    for block, key in enumerate((b"a", b"b", b"c"), 1):
        made.known[key] = HostBlock(block, b"", (block,))
    return made


@invariant(1)
def test_a_free_block_comes_first():
    made = full()
    made.free = [8, 9]
    expect(made._take_free(), 9)
    expect(list(made.known), [b"a", b"b", b"c"])
    expect(made.free, [8])


@invariant(1)
def test_a_free_block_asks_nobody():
    made = full()
    made.free = [8]
    expect(made._take_free(keep={b"a"}), 8)


@invariant(2)
def test_the_one_used_longest_ago_makes_room():
    made = full()
    made.known.move_to_end(b"a")
    expect(made._take_free(), 2)
    expect(list(made.known), [b"c", b"a"])


@invariant(2)
def test_twice():
    made = full()
    expect([made._take_free(), made._take_free()], [1, 2])


@invariant(2)
def test_a_block_that_was_filled_again_makes_room_again():
    made = full()
    made._take_free()
    made.known[b"d"] = HostBlock(1, b"", (4,))
    made.known.move_to_end(b"c")
    expect([made._take_free() for _ in range(3)], [2, 1, 3])


@invariant(3)
@pytest.mark.parametrize("name", ["sources", "moving", "jobs"])
def test_those_in_use_are_passed_over(name):
    made = full()
    setattr(made, name, {1: b"of an earlier step"} if name == "moving" else {1})
    expect(made._take_free(), 2)
    expect(list(made.known), [b"a", b"c"])


@invariant(3)
def test_nothing_else_is_touched():
    made = full()
    made.sources, made.moving, made.loads = {1}, {7: b"g"}, {5: (1, b"a")}
    expect(made._take_free(), 2)
    expect(list(made.known), [b"a", b"c"])
    expect([made.free, made.sources, made.moving, made.jobs], [[], {1}, {7: b"g"}, set()])
    expect(made.loads, {5: (1, b"a")})


@invariant(3)
def test_each_for_another_reason():
    made = full()
    made.sources, made.moving, made.jobs = {1}, {2: b"b"}, set()
    expect(made._take_free(), 3)


@invariant(3)
def test_one_for_three_reasons():
    made = full()
    made.sources, made.moving, made.jobs = {1}, {1: b"a"}, {1}
    expect(made._take_free(), 2)


@invariant(3)
def test_two_reasons_are_not_none():
    made = full()
    made.sources, made.moving = {1}, {1: b"a"}
    expect(made._take_free(), 2)


@invariant(3)
def test_what_was_in_use_may_go_later():
    made = full()
    made.jobs = {1}
    expect(made._take_free(), 2)
    made.jobs = {3}
    expect(made._take_free(), 1)


@invariant(4)
def test_nothing_is_known():
    made = full()
    made.known.clear()
    expect(made._take_free(), None)


@invariant(4)
def test_all_are_in_use():
    made = full()
    made.sources, made.moving, made.jobs, made.stores = {1}, {2: b"b"}, {3}, {1: (7, b"a")}
    expect(made._take_free(), None)
    expect(list(made.known), [b"a", b"b", b"c"])
    expect(made.stores, {1: (7, b"a")})


@invariant(4)
def test_the_oldest_is_to_be_kept():
    made = full()
    made.jobs, made.stores = {1}, {2: (7, b"b")}
    expect(made._take_free(keep={b"b": None}), None)
    expect(list(made.known), [b"a", b"b", b"c"])
    expect(made.stores, {2: (7, b"b")})


@invariant(4)
def test_another_is_to_be_kept():
    expect(full()._take_free(keep=[b"b"]), 1)


@invariant(5)
def test_its_copy_is_not_made():
    made = full()
    made.stores = {1: (7, b"a"), 2: (8, b"b")}
    made._take_free()
    expect(made.stores, {2: (8, b"b")})
