import random

from folovllm.mine.batches import batches
from lab_judge import expect, invariant, measure

ROOM, CALL, ROW = 4096, 20, 0.1


def load():
    """80 prompts, their lengths in tokens: one in five is long."""
    rng = random.Random(1)
    return [rng.randint(300, 900) if rng.random() < 0.2 else rng.randint(4, 120) for _ in range(80)]


def rows(batch, lengths):
    """A batch is a rectangle: as many rows for each prompt as the longest has tokens."""
    return len(batch) * max(lengths[number] for number in batch)


@invariant(1)
def test_each_prompt_is_in_one_batch():
    lengths = [30, 500, 7, 30]
    expect(sorted(number for batch in batches(lengths) for number in batch), [0, 1, 2, 3])


@invariant(1)
def test_so_is_each_of_the_load():
    made = batches(load())
    expect(sorted(number for batch in made for number in batch), list(range(80)))


@invariant(2)
def test_each_batch_has_room():
    lengths = load()
    largest = max(rows(batch, lengths) for batch in batches(lengths))
    expect(max(largest, ROOM), ROOM)


@invariant(3)
def test_the_time_of_all_batches():
    lengths = load()
    measure(sum(CALL + ROW * rows(batch, lengths) for batch in batches(lengths)), at_most=1700)
