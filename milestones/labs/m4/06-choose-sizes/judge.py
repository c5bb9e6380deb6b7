import random
from bisect import bisect_left

from folovllm.mine.graph_sizes import choose_sizes
from lab_judge import expect, invariant, measure


def day(seed):
    """The number of sequences in each of 3,000 steps, quiet hours and busy ones."""
    rng, size, sizes = random.Random(seed), 20, []
    for step in range(3000):
        load = 24 if step % 1000 < 600 else 90
        size += 2 * (rng.random() < load / 200) - 2 * (rng.random() < size / 200)
        size = max(1, min(128, size))
        sizes.append(size)
    return sizes


@invariant(1)
def test_six_graphs_and_the_largest_batch():
    sizes = sorted(choose_sizes(day(1), most=6, largest=128))
    expect((1 <= len(sizes) <= 6, sizes[-1:]), (True, [128]))


@invariant(1)
def test_fewer_graphs():
    expect(list(choose_sizes(day(1), most=1, largest=128)), [128])


@invariant(2)
def test_rows_of_a_step_on_the_next_day():
    sizes = sorted(choose_sizes(day(1), most=6, largest=128))
    rows = [sizes[bisect_left(sizes, size)] for size in day(2)]
    measure(sum(rows) / len(rows), at_most=60.5)
