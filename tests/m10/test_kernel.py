"""The kernels that multiply each expert's rows by its own weight, against float64 and against plain torch."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers.moe import Groups, Routing, group
from tests.helpers import some
from tests.m10.support import Weights, by_hand, random_routing

pytest.importorskip("triton")
from folovllm.layers.kernels import experts as kernels
from folovllm.layers.triton_ops import StackedExperts, triton_ops

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def stacked(count: int, hidden: int, size: int, dtype: torch.dtype = torch.float32, **how: bool) -> StackedExperts:
    experts = StackedExperts(count, lambda number: Weights(hidden, size, number, dtype).to(DEVICE), **how)
    for number, expert in enumerate(experts):  # as a checkpoint would
        expert.load_state_dict(Weights(hidden, size, number, dtype).state_dict())
    triton_ops().process_weights_after_loading(experts)
    return experts


def off(experts: StackedExperts, x: torch.Tensor, routing: Routing) -> float:
    on_device = Routing(*(part.to(DEVICE) for part in routing))
    got, want = experts(x.to(DEVICE), on_device).cpu().double(), by_hand(experts.cpu(), x, routing)
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k", "hidden", "size"),
    [(1, 8, 3, 40, 24), (70, 3, 2, 64, 40), *some([(5, 40, 8, 33, 17), (20, 1, 1, 16, 16)])],
)
def test_tokens_have_what_their_experts_say(
    num_tokens: int, num_experts: int, top_k: int, hidden: int, size: int
) -> None:
    routing = random_routing(num_tokens, num_experts, top_k)
    assert off(stacked(num_experts, hidden, size), torch.randn(num_tokens, hidden), routing) < 1e-5


def test_sums_are_float32_for_a_model_in_bfloat16() -> None:
    x, routing = torch.randn(20, 96).bfloat16(), random_routing(20, 4, 2)
    assert off(stacked(4, 96, 64, torch.bfloat16), x, routing) < 2**-6  # the interpreter rounds towards zero


def test_all_tokens_on_one_side_leave_the_other_experts_alone() -> None:
    """NaN in a weight that is read would be in the result, whatever it is multiplied by."""
    experts = stacked(6, 32, 16)
    experts.gate_up[[0, 1, 2, 4]] = float("nan")
    experts.down[[0, 1, 2, 4]] = float("nan")
    routing = Routing(torch.full((20, 2), 0.5), torch.tensor([[5, 3]] * 20))
    assert off(experts, torch.randn(20, 32), routing) < 1e-5


def test_the_grid_has_a_tile_for_whatever_is_chosen() -> None:
    """16 pairs of 4 experts in tiles of 4: 4, 6 or 7 are needed, and 7 can be told without looking."""
    assert kernels.most_tiles(16, 4, 4) == 7
    for chosen in ([0] * 16, [0] * 13 + [1, 2, 3], [0, 1, 2, 3] * 4):
        counts = [chosen.count(number) for number in range(4)]
        assert sum(-(-count // 4) for count in counts) <= 7
    assert kernels.most_tiles(3, 128, 16) == 3


def test_each_experts_parameters_are_slices_of_the_stack() -> None:
    experts = stacked(3, 16, 8)
    experts[1].down_proj.weight.fill_(7.0)
    assert experts.down[1].unique().tolist() == [7.0]
    assert (
        sum(parameter.numel() for parameter in experts.parameters()) == experts.gate_up.numel() + experts.down.numel()
    )


@pytest.mark.usefixtures("fixed_order")
def test_invariant_bits_do_not_depend_on_the_batch() -> None:
    experts, x, routing = stacked(2, 48, 32, invariant=True), torch.randn(40, 48).to(DEVICE), random_routing(40, 2, 2)
    routing = Routing(*(part.to(DEVICE) for part in routing))
    together = experts(x, routing)
    for token in (0, 39):
        assert torch.equal(
            experts(x[token][None], Routing(*(part[token][None] for part in routing)))[0], together[token]
        )


@pytest.mark.parametrize("fault", ["no weights", "swapped experts", "rows in another order"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experts, x, routing = stacked(4, 32, 16), torch.randn(6, 32), random_routing(6, 4, 2)
    given = routing
    if fault == "no weights":
        given = Routing(torch.ones_like(routing.weights), routing.experts)
    elif fault == "swapped experts":
        experts.gate_up = experts.gate_up[[1, 0, 2, 3]]
    else:
        wrong = Groups(group(routing.experts, 4).order.flip(0).contiguous(), group(routing.experts, 4).ends)
        for place in ("folovllm.layers.triton_ops.group", "folovllm.layers.kernels.experts.group"):  # from M11 on
            monkeypatch.setattr(place, lambda chosen, count: wrong, raising=False)
    got = experts(x.to(DEVICE), Routing(*(part.to(DEVICE) for part in given))).cpu()
    assert float((got - by_hand(experts.cpu(), x, routing)).abs().max()) > 0.1
