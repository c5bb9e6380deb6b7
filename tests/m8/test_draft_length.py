"""How many tokens to draft: numbers by hand."""

from __future__ import annotations

import pytest

from folovllm.core.draft_length import PROBE_EVERY, PROBES, DraftLength, StepCosts, best_length, expected_tokens

COSTS = StepCosts(ridge=31)  # a row more costs 1/31 of a step's weights
DEAR = StepCosts(ridge=4, draft=0.2)


def feed(length: DraftLength, drafted: int, accepted: int, times: int = 500) -> DraftLength:
    for _ in range(times):
        length.record(drafted, accepted)
    return length


def test_the_expected_tokens_are_a_geometric_sum() -> None:
    assert expected_tokens(0.5, 3) == 1 + 0.5 + 0.25 + 0.125
    assert [expected_tokens(1.0, k) for k in (0, 1, 4)] == [1, 2, 5]
    assert [expected_tokens(0.0, k) for k in (0, 1, 4)] == [1, 1, 1]


def test_a_step_costs_its_weights_its_rows_the_draft_and_the_wait() -> None:
    """Four sequences with two draft tokens: 12 rows of 8 beside the weights, and the draft has 4 rows twice."""
    costs = StepCosts(ridge=8, draft=0.1, waiting=0.5)
    assert costs.of_step(4, 2) == pytest.approx(1 + 12 / 8 + 2 * 0.1 * (1 + 4 / 8) + 0.5)
    assert costs.of_step(4, 0) == 1.5


def test_the_best_length_is_the_one_that_a_hand_finds() -> None:
    """One sequence, alpha 0.5, of 31ths: 1/32, 1.5/33, 1.75/34 = .0515, 1.875/35 = .0536, 1.9375/36 = .0538."""
    assert best_length(1, 0.5, 4, COSTS) == 4
    assert best_length(1, 0.5, 3, COSTS) == 3
    dear = StepCosts(ridge=31, draft=4 / 32)  # 4/31 more for each: 1.5/37 = .0405, 1.75/42 = .0417, 1.875/47 = .0399
    assert best_length(1, 0.5, 4, dear) == 2


def test_a_larger_batch_gets_shorter_drafts_and_at_last_none() -> None:
    found = [best_length(num_seqs, 0.6, 8, COSTS) for num_seqs in (1, 2, 4, 8, 16, 64, 256)]
    assert found == sorted(found, reverse=True)
    assert (found[0] > 4, found[-1]) == (True, 0)


def test_better_guesses_get_longer_drafts() -> None:
    found = [best_length(4, alpha, 8, StepCosts(ridge=31, draft=0.1)) for alpha in (0, 0.5, 0.8, 0.99)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 8)


def test_what_gains_less_than_a_twentieth_is_left() -> None:
    assert best_length(1, 1.0, 1, StepCosts(ridge=1e9, draft=0.92)) == 0  # 2/1.92 = 1.042
    assert best_length(1, 1.0, 1, StepCosts(ridge=1e9, draft=0.88)) == 1  # 2/1.88 = 1.064


@pytest.mark.parametrize(("accepted", "alpha"), [(0, 0.0), (1, 0.5), (4, 1.0)])
def test_what_was_not_looked_at_says_nothing_of_the_guesses(accepted: int, alpha: float) -> None:
    """If every other guess is right, a draft of four is often wrong at its first: three were never looked at."""
    assert feed(DraftLength(4, COSTS), 4, accepted).alpha == pytest.approx(alpha, abs=0.01)


def test_old_guesses_are_forgotten() -> None:
    length = feed(feed(DraftLength(4, COSTS), 1, 0, 10_000), 1, 1, 100)
    assert length.alpha > 0.8  # 100 of 10,100 were right


def test_length_follows_what_the_guesses_are_worth() -> None:
    length = DraftLength(4, DEAR)
    assert feed(length, 4, 4).choose(1) == 4
    assert feed(length, 4, 0).choose(1) == 0
    assert feed(length, 1, 1).choose(1) == 4


@pytest.mark.parametrize(("waiting", "best"), [(0.5, 0), (0.0, 4)])
def test_a_draft_that_says_nothing_costs_an_engine_that_could_run_ahead(waiting: float, best: int) -> None:
    """It waits for guesses, be there some or none. Another engine loses nothing, and what it knows of them stays."""
    length = feed(DraftLength(4, StepCosts(ridge=31, waiting=waiting)), 4, 4)
    assert length.choose(1) == 4
    assert feed(length, 0, 0).choose(1) == best
    assert feed(length, 4, 4).choose(1) == 4


def test_without_costs_it_is_always_the_most() -> None:
    assert feed(DraftLength(5, None), 5, 0).choose(256) == 5


def test_bad_guesses_are_looked_at_again_now_and_then() -> None:
    length = feed(DraftLength(4, DEAR), 4, 0)
    chosen = [length.choose(1) for _ in range(3 * PROBE_EVERY)]
    assert sum(chosen) == 3 * PROBES
    assert max(chosen) == 1
    assert sum(chosen[: PROBE_EVERY // 2]) == 0  # and not at once
    assert feed(length, 1, 1).choose(1) == 4


def test_where_even_perfect_guesses_lose_none_is_made() -> None:
    length = DraftLength(4, StepCosts(ridge=1, draft=0.9))
    assert {length.choose(64) for _ in range(10 * PROBE_EVERY)} == {0}
