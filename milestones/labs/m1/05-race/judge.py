import pytest
import torch

from folovllm.sample.draw import draw_exponential_race, exponentials
from folovllm.sample.filters import Candidates
from lab_judge import expect, expect_close, invariant

CPU = torch.device("cpu")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def meta():
    device = torch.device("meta")
    torch.ones(1, device=device) / 2  # the first one imports much of torch: many seconds, which are not the learner's
    return device


@invariant(1)
def test_the_first_to_arrive_wins():
    weights = torch.tensor([[1.0, 3.0, 1.0]])
    noise = torch.tensor([[0.5, 1.8, 2.0]])  # they take .5, .6 and 2
    expect(draw_exponential_race(Candidates(weights), noise), [0])


@invariant(1)
def test_a_large_weight_is_fast():
    weights = torch.tensor([[1.0, 3.0, 1.0]])
    noise = torch.tensor([[0.7, 1.8, 2.0]])  # .7, .6, 2
    expect(draw_exponential_race(Candidates(weights), noise), [1])


@invariant(1)
def test_each_draw_has_its_own_winner():
    noise = torch.tensor([[0.7, 1.8, 2.0]])
    first, second = (draw_exponential_race(Candidates(torch.tensor([[w, 3.0, 1.0]])), noise) for w in (1.0, 5.0))
    expect([first.item(), second.item()], [1, 0])


@invariant(2)
def test_weight_zero_never_wins():
    weights = torch.tensor([[0.0, 1.0]])
    noise = torch.tensor([[1e-30, 50.0]])
    expect(draw_exponential_race(Candidates(weights), noise), [1])


@invariant(2)
def test_only_the_first_columns_run():
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]])
    weights = torch.tensor([[1.0, 0.9, 0.8, 0.7], [1.0, 0.9, 0.8, 0.7]])
    noise = torch.tensor([[3.0, 2.0, 1.0, 0.1], [3.0, 2.0, 1.0, 0.1]])  # each is faster than those before it
    keep = torch.tensor([[2], [3]])
    expect(draw_exponential_race(Candidates(weights, ids, keep), noise), [1, 2])


@invariant(2)
def test_all_is_computed_where_the_noise_is(meta):
    # torch.device("meta"): its tensors have shapes and no numbers, so that none can be read on the host
    weights, noise = torch.ones(2, 3, device=meta), torch.ones(2, 3, device=meta)
    ids = torch.zeros(2, 3, dtype=torch.int64, device=meta)
    keep = torch.ones(2, 1, dtype=torch.int64, device=meta)
    expect(draw_exponential_race(Candidates(weights, ids, keep), noise).device, meta)


@invariant(3)
def test_a_column_stands_for_a_token():
    ids = torch.tensor([[70, 50], [30, 10]])
    weights = torch.tensor([[1.0, 0.5], [1.0, 0.5]])
    noise = torch.tensor([[1.0, 9.0], [9.0, 1.0]])
    expect(draw_exponential_race(Candidates(weights, ids, torch.tensor([[2], [2]])), noise), [70, 10])


@invariant(4)
def test_the_noise_is_one_on_average():
    noise = exponentials(torch.Size([2, 20000]), [seeded(0), seeded(1)], CPU)
    expect((list(noise.shape), noise.dtype), ([2, 20000], torch.float32))
    expect_close(noise.mean(dim=1), [1.0, 1.0], atol=0.05)


@invariant(4)
def test_draws_have_the_probabilities_of_the_weights():
    noise = exponentials(torch.Size([1, 40000]), [seeded(0)], CPU).view(-1, 2)  # 20,000 races of two
    weights = torch.tensor([[1.0, 3.0]]).expand(20000, 2)
    tokens = draw_exponential_race(Candidates(weights), noise)
    expect_close(float(tokens.float().mean()), 0.75, atol=0.02)


@invariant(5)
def test_a_seeded_row_draws_the_same_in_company():
    alone = exponentials(torch.Size([1, 4]), [seeded(7)], CPU)
    among = exponentials(torch.Size([3, 4]), [seeded(5), seeded(7), None], CPU)
    expect(among[1], alone[0])


@invariant(5)
def test_the_noise_of_a_row_is_one_call():
    generator = seeded(7)
    exponentials(torch.Size([1, 4]), [generator], CPU)
    second = exponentials(torch.Size([1, 4]), [generator], CPU)
    by_hand = seeded(7)
    torch.empty(4).exponential_(generator=by_hand)
    expect(second[0], torch.empty(4).exponential_(generator=by_hand))


@invariant(6)
def test_unseeded_rows_draw_from_the_default_generator():
    torch.manual_seed(3)
    noise = exponentials(torch.Size([2, 4]), [None, None], CPU)
    torch.manual_seed(3)
    expect(exponentials(torch.Size([2, 4]), [None, None], CPU), noise)
    expect(bool((noise[0] == noise[1]).any()), False)


@pytest.fixture
def empty_is_nan():
    """What torch.empty gives is nan until it is written."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@invariant(6)
def test_they_are_drawn_beside_seeded_ones_too(empty_is_nan):
    torch.manual_seed(3)
    noise = exponentials(torch.Size([2, 20000]), [None, seeded(7)], CPU)
    expect_close(noise.mean(dim=1), [1.0, 1.0], atol=0.05)


@invariant(6)
def test_they_are_drawn_wherever_they_stand(empty_is_nan):
    torch.manual_seed(3)
    noise = exponentials(torch.Size([3, 20000]), [seeded(7), None, seeded(8)], CPU)
    expect_close(noise.mean(dim=1), [1.0, 1.0, 1.0], atol=0.05)


@invariant(6)
def test_each_call_draws_anew():
    calls = [exponentials(torch.Size([2, 4]), [None, seeded(7)], CPU) for _ in range(3)]
    unseeded = {tuple(noise[0].tolist()) for noise in calls}
    expect(len(unseeded), 3)


@invariant(6)
def test_seeded_rows_leave_the_default_generator_alone():
    torch.manual_seed(3)
    exponentials(torch.Size([2, 4]), [seeded(5), seeded(7)], CPU)
    next_number = torch.rand(1).item()
    torch.manual_seed(3)
    expect(next_number, torch.rand(1).item())


@invariant(6)
def test_they_leave_the_seeded_ones_alone():
    generator = seeded(7)
    noise = exponentials(torch.Size([2, 4]), [None, generator], CPU)
    expect(noise[1], torch.empty(4).exponential_(generator=seeded(7)))
    expect(bool((noise[0] > 0).all()), True)


@invariant(7)
def test_the_weights_are_read_only():
    weights = torch.tensor([[1.0, 0.9, 0.8]])
    candidates = Candidates(weights, torch.tensor([[0, 1, 2]]), torch.tensor([[1]]))
    draw_exponential_race(candidates, torch.ones(1, 3))
    expect(weights.tolist(), torch.tensor([[1.0, 0.9, 0.8]]).tolist())


@invariant(7)
def test_so_is_the_noise():
    noise = torch.tensor([[0.5, 1.75, 2.0]])
    draw_exponential_race(Candidates(torch.tensor([[1.0, 3.0, 1.0]])), noise)
    expect(noise.tolist(), [[0.5, 1.75, 2.0]])
