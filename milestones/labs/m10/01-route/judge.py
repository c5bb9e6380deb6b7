import torch

from folovllm.layers.moe import route
from lab_judge import expect, expect_close, invariant

LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.1, 0.1]]).log()


@invariant(1)
def test_the_highest_come_first():
    expect(route(LOGITS[:1], 3, renormalize=False).experts.tolist(), [[1, 3, 2]])


@invariant(1)
def test_each_token_has_a_choice():
    expect(route(LOGITS, 1, renormalize=False).experts.tolist(), [[1], [0]])


@invariant(1)
def test_all_experts_may_be_asked_for():
    expect(route(LOGITS[:1], 4, renormalize=False).experts.tolist(), [[1, 3, 2, 0]])


@invariant(2)
def test_weights_are_probabilities_among_all_experts():
    expect_close(route(LOGITS[:1], 2, renormalize=False).weights, torch.tensor([[0.4, 0.3]]))


@invariant(2)
def test_logits_may_be_large():
    found = route(torch.tensor([[100.0, 99.0]]), 1, renormalize=False)
    expect_close(found.weights, torch.tensor([[0.731059]]))


@invariant(2)
def test_large_ones_beside_small_ones():
    found = route(torch.tensor([[100.0, 99.0], [-100.0, -101.0]]), 1, renormalize=False)
    expect_close(found.weights, torch.tensor([[0.731059], [0.731059]]))


@invariant(2)
def test_each_step_has_weights_of_its_own():
    first, second = (route(LOGITS[[row]], 1, renormalize=False).weights for row in (0, 1))
    expect_close([first.item(), second.item()], [0.4, 0.7])


@invariant(3)
def test_weights_are_divided_by_their_sum():
    expect_close(route(LOGITS[:1], 2, renormalize=True).weights, torch.tensor([[4 / 7, 3 / 7]]))


@invariant(3)
def test_of_a_single_expert_nothing_else_is_left():
    expect_close(route(LOGITS, 1, renormalize=True).weights, torch.ones(2, 1))


@invariant(4)
def test_of_equal_experts_the_lower_number_comes_first():
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]])
    expect(route(logits, 2, renormalize=False).experts.tolist(), [[1, 2]])


@invariant(4)
def test_so_it_is_in_a_large_batch():
    logits = torch.zeros(200, 40)
    experts = route(logits, 2, renormalize=False).experts
    expect(bool((experts == torch.tensor([0, 1])).all()), True)


@invariant(4)
def test_probabilities_of_0_are_equal():
    logits = torch.tensor([[0.0, -200.0, -150.0]])  # the exponential of either is 0 in float32
    expect(route(logits, 2, renormalize=False).experts.tolist(), [[0, 1]])


@invariant(5)
def test_weights_are_float32():
    weights = route(LOGITS[:1].bfloat16(), 1, renormalize=False).weights
    expect(weights.dtype, torch.float32)


@invariant(5)
def test_and_computed_in_float32():
    logits = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.bfloat16)
    expect_close(route(logits, 1, renormalize=False).weights, torch.tensor([[0.66524]]))


@invariant(6)
def test_the_logits_are_read_only():
    logits = torch.tensor([[1.0, 3.0]])
    route(logits, 1, renormalize=True)
    expect(logits.tolist(), [[1.0, 3.0]])
