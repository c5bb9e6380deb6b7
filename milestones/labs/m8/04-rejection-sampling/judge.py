import torch

from folovllm.sample import rejection
from folovllm.sample.rejection import accept_or_replace
from lab_judge import expect, expect_close, invariant

TARGET, DRAFT = torch.tensor([0.4, 0.1, 0.3, 0.2]), torch.tensor([0.5, 0.3, 0.1, 0.1])
COUNT = 20_000


def taken(seed, generator):
    """How many numbers a generator has given since it had this seed."""
    beside = torch.Generator().manual_seed(seed)
    for count in range(4):
        if generator.get_state().equal(beside.get_state()):
            return count
        torch.rand((), dtype=torch.float64, generator=beside)
    return "others"


@invariant(1)
def test_what_the_target_wants_as_much_is_kept():
    drafted = torch.tensor([2, 3]).repeat(COUNT // 2)
    accepted, token_ids = accept_or_replace(TARGET.expand(COUNT, -1), DRAFT.expand(COUNT, -1), drafted, [None] * COUNT)
    expect((accepted.dtype, accepted.all().item()), (torch.bool, True))
    expect(token_ids[:4].tolist(), [2, 3, 2, 3])


@invariant(1)
def test_the_other_tokens_are_kept_by_chance():
    torch.manual_seed(0)
    for token_id, share in ((0, 0.8), (1, 1 / 3)):
        drafted = torch.full((COUNT,), token_id)
        accepted, token_ids = accept_or_replace(
            TARGET.expand(COUNT, -1), DRAFT.expand(COUNT, -1), drafted, [None] * COUNT
        )
        expect_close(accepted.double().mean().item(), share, atol=0.015)
        expect((token_ids[accepted] == token_id).all().item(), True)


@invariant(1)
def test_what_the_target_never_says_is_refused():
    target, draft = torch.tensor([[0.0, 1.0]]).expand(1000, -1), torch.tensor([[0.9, 0.1]]).expand(1000, -1)
    accepted, token_ids = accept_or_replace(target, draft, torch.zeros(1000, dtype=torch.int64), [None] * 1000)
    expect((accepted.any().item(), token_ids.unique().tolist()), (False, [1]))


@invariant(2)
def test_a_replacement_is_what_the_target_has_more_of():
    torch.manual_seed(0)
    drafted = torch.ones(COUNT, dtype=torch.int64)
    accepted, token_ids = accept_or_replace(TARGET.expand(COUNT, -1), DRAFT.expand(COUNT, -1), drafted, [None] * COUNT)
    instead = token_ids[~accepted].bincount(minlength=4).double()
    right = torch.tensor([0, 0, 2 / 3, 1 / 3]).double()
    expect_close(instead / instead.sum(), right, atol=0.02)


@invariant(3)
def test_the_targets_distribution_comes_out():
    torch.manual_seed(0)
    drafted = torch.multinomial(DRAFT, COUNT, replacement=True)
    accepted, token_ids = accept_or_replace(TARGET.expand(COUNT, -1), DRAFT.expand(COUNT, -1), drafted, [None] * COUNT)
    expect_close(token_ids.bincount(minlength=4).double() / COUNT, TARGET.double(), atol=0.015)
    expect_close(accepted.double().mean().item(), 0.7, atol=0.015)


@invariant(4)
def test_each_row_has_its_own_distributions():
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.2, 0.8, 0.0], [0.0, 1.0, 0.0]])
    draft = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
    accepted, token_ids = accept_or_replace(target, draft, torch.tensor([1, 2, 0, 2]), [None] * 4)
    expect((accepted.tolist(), token_ids.tolist()), ([False, True, True, False], [0, 2, 0, 1]))
    expect((token_ids.dtype, list(token_ids.shape)), (torch.int64, [4]))


@invariant(4)
def test_what_was_given_stays_as_it_was():
    target, draft, drafted = TARGET.repeat(2, 1), DRAFT.repeat(2, 1), torch.tensor([1, 1])
    accept_or_replace(target, draft, drafted, [None, None])
    expect((target.tolist(), draft.tolist(), drafted.tolist()), (
        TARGET.repeat(2, 1).tolist(), DRAFT.repeat(2, 1).tolist(), [1, 1]
    ))  # fmt: skip


@invariant(5)
def test_a_draft_like_the_target_is_always_kept():
    torch.manual_seed(0)
    probs = torch.rand(1000, 50).softmax(-1)
    drafted = torch.multinomial(probs, 1).squeeze(-1)
    accepted, token_ids = accept_or_replace(probs, probs.clone(), drafted, [None] * 1000)
    expect((accepted.all().item(), token_ids.equal(drafted)), (True, True))


@invariant(5)
def test_what_only_rounding_took_away_is_kept():
    draft = torch.tensor([[0.75, 0.25]]).expand(COUNT, -1)
    target = torch.tensor([[0.50, 0.25]]).expand(COUNT, -1)  # a sum that lost something: nothing lacks anywhere
    accepted, token_ids = accept_or_replace(target, draft, torch.zeros(COUNT, dtype=torch.int64), [None] * COUNT)
    expect((accepted.all().item(), token_ids.unique().tolist()), (True, [0]))


@invariant(5)
def test_a_row_like_its_draft_is_kept_beside_another():
    target, draft = torch.tensor([[0.50, 0.25], [0.0, 1.0]]), torch.tensor([[0.75, 0.25], [1.0, 0.0]])
    for _ in range(20):
        accepted, token_ids = accept_or_replace(target, draft, torch.tensor([0, 0]), [None, None])
        expect((accepted.tolist(), token_ids.tolist()), ([True, False], [0, 1]))


@invariant(6)
def test_a_rows_token_depends_on_its_own_generator_only():
    def token_of(seed, others):
        generators = [*others, torch.Generator().manual_seed(seed)]
        rows = len(generators)
        return accept_or_replace(
            TARGET.expand(rows, -1), DRAFT.expand(rows, -1), torch.ones(rows, dtype=torch.int64), generators
        )[1][-1].item()

    alone = [token_of(seed, []) for seed in range(40)]
    expect([token_of(seed, [None, torch.Generator().manual_seed(9)]) for seed in range(40)], alone)
    expect(sorted(set(alone)), [1, 2, 3])


@invariant(6)
def test_a_row_takes_one_number_of_its_generator():
    kept, refused = (torch.Generator().manual_seed(seed) for seed in (1, 1))
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    draft = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    accepted, _ = accept_or_replace(target, draft, torch.tensor([0, 0]), [kept, refused])
    expect(accepted.tolist(), [True, False])
    expect([taken(1, kept), taken(1, refused)], [1, 1])


@invariant(6)
def test_a_quotient_of_0_keeps_nothing(monkeypatch):
    monkeypatch.setattr(rejection, "uniforms", lambda generators, device: torch.zeros(1, 1, dtype=torch.float64))
    target, draft = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    accepted, token_ids = accept_or_replace(target, draft, torch.tensor([0]), [None])
    expect((accepted.tolist(), token_ids.tolist()), ([False], [1]))


@invariant(6)
def test_the_quotient_is_one_of_float64(monkeypatch):
    wanted, had = torch.tensor([0.1, 0.3])  # float32
    exact, rounded = wanted.double() / had.double(), (wanted / had).double()
    between = ((exact + rounded) / 2).reshape(1, 1)  # a number that only one of them is above
    monkeypatch.setattr(rejection, "uniforms", lambda generators, device: between)
    target, draft = torch.tensor([[0.1, 0.9]]), torch.tensor([[0.3, 0.7]])
    accepted, _ = accept_or_replace(target, draft, torch.tensor([0]), [None])
    expect(accepted.item(), (between < exact).item())


@invariant(6)
def test_a_row_that_is_surely_kept_takes_a_number_too():
    kept = torch.Generator().manual_seed(1)
    accept_or_replace(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([0]), [kept])
    expect(taken(1, kept), 1)


@invariant(5)
def test_a_small_difference_is_one(monkeypatch):
    monkeypatch.setattr(rejection, "uniforms", lambda generators, device: torch.full((1, 1), 0.999).double())
    target, draft = torch.tensor([[0.502, 0.498]]), torch.tensor([[0.5, 0.5]])
    accepted, token_ids = accept_or_replace(target, draft, torch.tensor([1]), [None])
    expect((accepted.tolist(), token_ids.tolist()), ([False], [0]))
