"""A layer of experts by itself: where tokens go, how they are sorted by expert, and how they come back."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers.linear import PLAIN
from folovllm.layers.moe import Experts, ExpertsSpec, Routing, SparseMoE, group, put_back, route
from tests.m10.support import Weights, by_hand, random_routing


def test_a_token_goes_to_the_experts_with_the_highest_probabilities() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()[None]
    weights, experts = route(logits, 2, renormalize=False)
    assert experts.tolist() == [[1, 3]]
    assert weights[0].tolist() == pytest.approx([0.4, 0.3])
    assert route(logits, 2, renormalize=True).weights[0].tolist() == pytest.approx([4 / 7, 3 / 7])


def test_of_equal_experts_the_lower_number_is_taken_whatever_the_batch() -> None:
    row = torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0] + [2.0] * 59)
    for count in (1, 2, 7, 300):
        assert route(row.repeat(count, 1), 3, renormalize=True).experts.tolist() == [[1, 2, 4]] * count


def test_the_router_stays_in_float32_for_a_model_in_bfloat16() -> None:
    """bfloat16 has no number between 256 and 258: the two experts would be alike."""
    spec = ExpertsSpec(2, 1, 8, True, frozenset({0}))
    layer = SparseMoE(spec, 4, lambda size, name: Weights(4, size, 0, torch.bfloat16), Experts, PLAIN, "mlp")
    layer.gate.weight.copy_(torch.tensor([[256.0] * 4, [256.0, 256.0, 256.0, 257.0]]))
    assert layer.gate.weight.dtype == torch.float32
    x = torch.ones(1, 4, dtype=torch.bfloat16)
    assert route(layer.gate(x.float()), 1, renormalize=True).experts.tolist() == [[1]]


def test_pairs_are_side_by_side_by_expert_and_in_the_order_of_their_tokens() -> None:
    experts = torch.tensor([[2, 0], [0, 3], [3, 0]])  # pairs 0 to 5
    order, ends = group(experts, 5)
    assert order.tolist() == [1, 2, 5, 0, 3, 4]
    assert ends.tolist() == [3, 3, 4, 6, 6]  # 1 and 4 have none


def test_what_is_put_back_is_weighted_and_summed_by_token() -> None:
    routing = Routing(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([[1, 0], [0, 1]]))
    groups = group(routing.experts, 2)
    assert groups.order.tolist() == [1, 2, 0, 3]
    rows = torch.tensor([[10.0], [20.0], [100.0], [200.0]])  # of expert 0: tokens 0 and 1; of expert 1: the same
    assert put_back(rows, groups, routing.weights).tolist() == [[77.5], [110.0]]


@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), [(1, 4, 2), (9, 4, 4), (30, 3, 1), (5, 64, 2)])
def test_all_experts_are_their_weighted_sum_token_by_token(num_tokens: int, num_experts: int, top_k: int) -> None:
    experts = Experts(num_experts, lambda number: Weights(16, 24, number))
    x, routing = torch.randn(num_tokens, 16), random_routing(num_tokens, num_experts, top_k)
    got = experts(x, routing)
    assert (got - by_hand(experts, x, routing)).abs().max() < 1e-5


def test_an_expert_that_no_token_chose_is_not_read() -> None:
    read: list[int] = []
    experts = Experts(6, lambda number: Weights(8, 8, number))
    for number, expert in enumerate(experts):
        expert.register_forward_hook(lambda *_, number=number: read.append(number))
    x = torch.randn(4, 8)
    experts(x, Routing(torch.ones(4, 1), torch.tensor([[5], [2], [5], [5]])))
    assert read == [2, 5]
    read.clear()
    experts(x, Routing(torch.full((4, 2), 0.5), torch.tensor([[0, 1]] * 4)))  # all on one side
    assert read == [0, 1]


def test_a_tokens_bits_do_not_depend_on_who_shares_its_experts() -> None:
    experts = Experts(4, lambda number: Weights(16, 24, number))
    for expert in experts:  # torch's products depend on the number of rows: these do not
        expert.forward = lambda x, expert=expert: torch.stack([Weights.forward(expert, row[None])[0] for row in x])
    x, routing = torch.randn(40, 16), random_routing(40, 4, 3)
    together = experts(x, routing)
    for token in (0, 17, 39):
        alone = experts(x[token][None], Routing(*(part[token][None] for part in routing)))
        assert torch.equal(alone[0], together[token])
