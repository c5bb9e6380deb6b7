from folovllm.core.kv_offload import HostBlock, OffloadingManager
from folovllm.core.scheduler_output import SchedulerOutput
from lab_judge import expect, invariant


class Pool:
    """Says what its blocks hold."""

    def __init__(self, **hashes):
        self.hashes = {int(name[1:]): key for name, key in hashes.items()}

    def hash_of(self, block):
        return self.hashes.get(block, b"")

    def is_cached(self, block):
        return block in self.hashes

    def has(self, key):
        return key in self.hashes.values()


def manager(second=None):
    return OffloadingManager(10, 9, second)


@invariant(1)
def test_a_store_goes_to_host_memory():
    made, output = manager(), SchedulerOutput()
    made.stores = {11: (3, b"a"), 12: (4, b"b")}
    made.add_moves(output, Pool())
    expect(output.blocks_to_swap_out, [(3, 11), (4, 12)])
    expect(output.blocks_to_swap_in, [])


@invariant(1)
def test_each_step_has_its_own():
    made, first, second = manager(), SchedulerOutput(), SchedulerOutput()
    made.stores = {11: (3, b"a")}
    made.add_moves(first, Pool())
    made.stores = {12: (4, b"b")}
    made.add_moves(second, Pool())
    expect([first.blocks_to_swap_out, second.blocks_to_swap_out], [[(3, 11)], [(4, 12)]])


@invariant(2)
def test_a_load_comes_from_there():
    made, output = manager(), SchedulerOutput()
    made.loads = {5: (11, b"a"), 6: (12, b"b")}
    made.add_moves(output, Pool(b5=b"a", b6=b"b"))
    expect(output.blocks_to_swap_in, [(11, 5), (12, 6)])


@invariant(2)
def test_a_block_that_was_handed_out_again_is_left_alone():
    made, output = manager(), SchedulerOutput()
    made.loads = {5: (11, b"a"), 6: (12, b"b"), 7: (13, b"c")}
    made.add_moves(output, Pool(b5=b"a", b7=b"another"))
    expect(output.blocks_to_swap_in, [(11, 5)])


@invariant(2)
def test_another_loads_hash_is_not_its_own():
    made, output = manager(), SchedulerOutput()
    made.loads = {5: (11, b"a"), 6: (12, b"b")}
    made.add_moves(output, Pool(b5=b"b", b6=b"b"))
    expect(output.blocks_to_swap_in, [(12, 6)])


@invariant(2)
def test_that_another_block_has_the_hash_does_not_help():
    made, output = manager(), SchedulerOutput()
    made.loads = {5: (11, b"a")}
    made.add_moves(output, Pool(b7=b"a"))
    expect(output.blocks_to_swap_in, [])


@invariant(2)
def test_what_is_stored_in_this_step_can_be_loaded():
    made, output = manager(), SchedulerOutput()
    made.stores, made.loads = {11: (3, b"a")}, {5: (11, b"a")}
    made.add_moves(output, Pool(b5=b"a"))
    expect([output.blocks_to_swap_out, output.blocks_to_swap_in], [[(3, 11)], [(11, 5)]])


@invariant(2)
def test_moves_of_preempted_sequences_stay():
    made = manager()
    output = SchedulerOutput(blocks_to_swap_out=[(7, 2)], blocks_to_swap_in=[(13, 4)])
    made.stores, made.loads = {11: (3, b"a")}, {5: (12, b"b")}
    made.add_moves(output, Pool(b5=b"b"))
    expect(output.blocks_to_swap_out, [(7, 2), (3, 11)])
    expect(output.blocks_to_swap_in, [(13, 4), (12, 5)])


@invariant(2)
def test_dropping_a_load_is_all_that_happens():
    made, known = manager(), HostBlock(11, b"", (1,))
    made.loads, made.known[b"a"], free = {5: (11, b"a")}, known, list(made.free)
    made.add_moves(SchedulerOutput(), Pool())
    expect([dict(made.known), made.free], [{b"a": known}, free])


@invariant(3)
def test_each_is_made_once():
    made = manager()
    made.stores, made.loads, made.sources = {11: (3, b"a")}, {5: (12, b"b")}, {12}
    made.add_moves(SchedulerOutput(), Pool(b5=b"b"))
    expect((made.stores, made.loads, made.sources), ({}, {}, set()))
    output = SchedulerOutput()
    made.add_moves(output, Pool(b5=b"b"))
    expect((output.blocks_to_swap_out, output.blocks_to_swap_in), ([], []))


@invariant(3)
def test_a_dropped_load_is_not_noted_any_more():
    made = manager()
    made.loads, made.sources = {5: (12, b"b"), 6: (11, b"a")}, {12, 11}
    made.add_moves(SchedulerOutput(), Pool(b6=b"a"))
    expect((made.loads, made.sources), ({}, set()))


@invariant(4)
def test_a_second_tier_will_ask_for_them():
    made = manager(second=object())
    made.moving, made.stores, made.loads = {13: b"c"}, {11: (3, b"a"), 12: (4, b"b")}, {5: (14, b"d")}
    made.add_moves(SchedulerOutput(), Pool(b5=b"d"))
    expect(made.moving, {13: b"c", 11: b"a", 12: b"b"})


@invariant(4)
def test_without_one_nobody_does():
    made = manager()
    made.moving, made.stores = {13: b"c"}, {11: (3, b"a")}
    made.add_moves(SchedulerOutput(), Pool())
    expect(made.moving, {13: b"c"})
