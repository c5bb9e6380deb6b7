import torch

from folovllm.layers.parallel import VocabParallelEmbedding
from lab_judge import expect, invariant
from support import Group


def embedding(group):
    """Five tokens of two numbers, token t is (10 t, 10 t + 1): 0 and 1 at rank 0; 2, 3 and 4 at rank 1."""
    layer = VocabParallelEmbedding(5, 2, group)
    table = torch.tensor([[10.0 * token, 10.0 * token + 1] for token in range(5)])
    layer.weight.data = table[layer.tokens.start : layer.tokens.stop].clone()
    return layer


@invariant(1)
def test_rank_0_has_the_first_tokens():
    group = Group(0)
    embedding(group)(torch.tensor([1, 0]))
    expect(group.given[0], torch.tensor([[10.0, 11.0], [0.0, 1.0]]))


@invariant(1)
def test_rank_1_has_the_others():
    group = Group(1)
    embedding(group)(torch.tensor([4, 2, 3]))
    expect(group.given[0], torch.tensor([[40.0, 41.0], [20.0, 21.0], [30.0, 31.0]]))


@invariant(2)
def test_a_token_of_rank_1_is_zeros_at_rank_0():
    group = Group(0)
    embedding(group)(torch.tensor([1, 2, 4]))
    expect(group.given[0], torch.tensor([[10.0, 11.0], [0.0, 0.0], [0.0, 0.0]]))


@invariant(2)
def test_a_token_of_rank_0_is_zeros_at_rank_1():
    group = Group(1)
    embedding(group)(torch.tensor([0, 1, 4]))
    expect(group.given[0], torch.tensor([[0.0, 0.0], [0.0, 0.0], [40.0, 41.0]]))


@invariant(2)
def test_whatever_the_weights_are():
    group = Group(0)
    layer = embedding(group)
    layer.weight.data = torch.full((2, 2), float("inf"))
    layer(torch.tensor([3, 2, 4]))
    expect(group.given[0], torch.zeros(3, 2))


@invariant(2)
def test_a_rank_with_a_single_token():
    group = Group(0)
    layer = VocabParallelEmbedding(2, 2, group)
    layer.weight.data = torch.tensor([[5.0, 6.0]])
    layer(torch.tensor([1, 0]))
    expect(group.given[0], torch.tensor([[0.0, 0.0], [5.0, 6.0]]))


@invariant(3)
def test_the_sum_comes_back():
    of_rank_1 = torch.tensor([[0.0, 0.0], [30.0, 31.0]])
    found = embedding(Group(0, other=of_rank_1))(torch.tensor([1, 3]))
    expect(found, torch.tensor([[10.0, 11.0], [30.0, 31.0]]))


@invariant(3)
def test_each_step_has_its_own_vectors():
    layer = embedding(Group(0))
    first, second = layer(torch.tensor([1, 0])), layer(torch.tensor([3, 1]))
    expect([first.tolist(), second.tolist()], [[[10.0, 11.0], [0.0, 1.0]], [[0.0, 0.0], [10.0, 11.0]]])


@invariant(4)
def test_the_ids_are_read_only():
    ids = torch.tensor([3, 0, 4])
    embedding(Group(1))(ids)
    expect(ids, torch.tensor([3, 0, 4]))


@invariant(5)
def test_the_dtype_is_that_of_the_weights():
    group = Group(0)
    layer = embedding(group)
    layer.weight.data = layer.weight.data.bfloat16()
    found = layer(torch.tensor([1, 3]))
    expect([group.given[0].dtype, found.dtype], [torch.bfloat16, torch.bfloat16])
