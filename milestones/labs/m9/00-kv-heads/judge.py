from folovllm.models.shard import kv_heads_of
from lab_judge import expect, invariant


@invariant(1)
def test_eight_heads_on_two_ranks():
    expect([list(kv_heads_of(8, rank, 2)) for rank in range(2)], [[0, 1, 2, 3], [4, 5, 6, 7]])


@invariant(1)
def test_a_head_for_each_rank():
    expect([list(kv_heads_of(4, rank, 4)) for rank in range(4)], [[0], [1], [2], [3]])


@invariant(1)
def test_a_head_for_each_of_23_ranks():
    expect([list(kv_heads_of(23, rank, 23)) for rank in range(23)], [[head] for head in range(23)])


@invariant(2)
def test_two_heads_on_six_ranks():
    expect([list(kv_heads_of(2, rank, 6)) for rank in range(6)], [[0], [0], [0], [1], [1], [1]])


@invariant(2)
def test_one_head_is_everywhere():
    expect([list(kv_heads_of(1, rank, 3)) for rank in range(3)], [[0], [0], [0]])


@invariant(2)
def test_it_is_a_range():
    expect(kv_heads_of(2, 3, 4), range(1, 2))
