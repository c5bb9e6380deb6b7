from types import SimpleNamespace

from folovllm.core.group_tables import free_outside_windows
from folovllm.kv_cache_groups import KVCacheGroups
from lab_judge import expect, invariant


class Pool:
    """Writes down what comes back."""

    def __init__(self):
        self.freed = []

    def free_blocks(self, block_ids):
        self.freed += block_ids


class Watched(list):
    """A table that counts how many of its entries are read."""

    reads = 0

    def __getitem__(self, place):
        self.reads += 1
        return super().__getitem__(place)

    def __iter__(self):
        self.reads += len(self)
        return super().__iter__()


def sequence(num_computed, *tables):
    return SimpleNamespace(num_computed_tokens=num_computed, tables=list(tables))


@invariant(1)
def test_blocks_in_front_of_the_window_go_back():
    pool, groups, table = Pool(), KVCacheGroups(windows=(6,), block_size=4), [7, 3, 5, 9]
    free_outside_windows(pool, groups, sequence(13, table))
    expect((table, sorted(pool.freed)), ([0, 0, 5, 9], [3, 7]))


@invariant(1)
def test_a_block_that_is_partly_read_stays():
    pool, groups, table = Pool(), KVCacheGroups(windows=(6,), block_size=4), [7, 3, 5]
    free_outside_windows(pool, groups, sequence(8, table))
    expect((table, pool.freed), ([7, 3, 5], []))


@invariant(1)
def test_each_group_by_its_own_window():
    pool, groups = Pool(), KVCacheGroups(windows=(8, 3), block_size=2)
    tables = [11, 12, 13, 14, 15, 16], [21, 22, 23, 24, 25, 26]
    free_outside_windows(pool, groups, sequence(11, *tables))
    expect(tables, ([0, 0, 13, 14, 15, 16], [0, 0, 0, 0, 25, 26]))


@invariant(2)
def test_a_group_without_a_window_keeps_all():
    pool, groups = Pool(), KVCacheGroups(windows=(None, 3), block_size=2)
    tables = [11, 12, 13], [21, 22, 23]
    free_outside_windows(pool, groups, sequence(6, *tables))
    expect((tables, pool.freed), (([11, 12, 13], [0, 0, 23]), [22, 21]))


@invariant(2)
def test_so_does_a_model_without_windows():
    pool, table = Pool(), [11, 12, 13]
    free_outside_windows(pool, KVCacheGroups(block_size=2), sequence(100, table))
    expect((table, pool.freed), ([11, 12, 13], []))


@invariant(2)
def test_the_group_in_front_of_it_gives_back():
    pool, groups = Pool(), KVCacheGroups(windows=(3, None), block_size=2)
    tables = [11, 12, 13], [21, 22, 23]
    free_outside_windows(pool, groups, sequence(6, *tables))
    expect((tables, pool.freed), (([0, 0, 13], [21, 22, 23]), [12, 11]))


@invariant(3)
def test_step_by_step_each_block_is_freed_once():
    pool, groups, table = Pool(), KVCacheGroups(windows=(6,), block_size=4), [7, 3, 5, 9]
    for num_computed in range(16):
        free_outside_windows(pool, groups, sequence(num_computed, table))
    expect((table, pool.freed), ([0, 0, 5, 9], [7, 3]))


@invariant(3)
def test_a_long_table_is_not_walked_through_in_each_step():
    table = Watched([0] * 500 + list(range(1, 13)))
    free_outside_windows(Pool(), KVCacheGroups(windows=(4,), block_size=1), sequence(502, table))
    expect(table.reads <= 6, True)


@invariant(4)
def test_a_table_may_end_in_front_of_the_window():
    pool, groups, table = Pool(), KVCacheGroups(windows=(2,), block_size=4), [7, 3]
    free_outside_windows(pool, groups, sequence(40, table))
    expect((table, sorted(pool.freed)), ([0, 0], [3, 7]))


@invariant(5)
def test_the_last_group_first_and_in_it_the_last_block():
    pool, groups = Pool(), KVCacheGroups(windows=(4, 4), block_size=2)
    tables = [11, 12, 13, 14], [21, 22, 23, 24]
    free_outside_windows(pool, groups, sequence(7, *tables))
    expect(pool.freed, [22, 21, 12, 11])
