"""How many tokens to draft: numbers by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from folovllm.core.draft_length import (
    PROBE_EVERY,
    PROBES,
    DraftLength,
    HostCosts,
    StepCosts,
    best_length,
    expected_tokens,
)

# A step takes 8 ms for its weights and 1 ms more for each 4 rows; a draft is free.
COSTS = StepCosts([1, 5, 65], [8.0, 9.0, 24.0], [0.0, 0.0, 0.0])


def feed(length: DraftLength, drafted: int, accepted: int, times: int = 500) -> DraftLength:
    for _ in range(times):
        length.record(drafted, accepted)
    return length


def test_the_expected_tokens_are_a_geometric_sum() -> None:
    assert expected_tokens(0.5, 3) == 1 + 0.5 + 0.25 + 0.125
    assert [expected_tokens(1.0, k) for k in (0, 1, 4)] == [1, 2, 5]
    assert [expected_tokens(0.0, k) for k in (0, 1, 4)] == [1, 1, 1]


def test_the_best_length_is_the_one_that_a_hand_finds() -> None:
    """One sequence, alpha 0.5: 1/8, 1.5/8.25, 1.75/8.5 = .206, 1.875/8.75 = .214, 1.9375/9 = .215 tokens per ms."""
    assert best_length(1, 0.5, 4, COSTS) == 4
    assert best_length(1, 0.5, 3, COSTS) == 3
    dear = StepCosts([1, 5], [8.0, 9.0], [1.0, 1.0])  # 1.5/9.25 = .1622, 1.75/10.5 = .1667, 1.875/11.75 = .1596
    assert best_length(1, 0.5, 4, dear) == 2


def test_a_larger_batch_gets_shorter_drafts_and_at_last_none() -> None:
    costs = StepCosts([1, 9, 1001], [8.0, 8.0, 1000.0], [0.0, 0.0, 0.0])  # flat to 9 rows, then 1 ms for each
    found = [best_length(num_seqs, 0.6, 8, costs) for num_seqs in (1, 2, 3, 4, 8, 64)]
    assert found == sorted(found, reverse=True)
    assert found[0] == 8
    assert found[-1] == 0


def test_better_guesses_get_longer_drafts() -> None:
    found = [best_length(4, alpha, 8, StepCosts([1, 101], [10.0, 110.0], [1.0, 1.0])) for alpha in (0, 0.5, 0.8, 0.99)]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] == 8


def test_a_step_that_is_mostly_the_hosts_leaves_room_for_guesses() -> None:
    """Of the model alone 4 rows cost 4 ms. With 10 ms of the host in each step it is 11 ms for 1 token, 14 for 4."""
    costs = StepCosts([1, 4], [1.0, 4.0], [0.0, 0.0], HostCosts(fixed=10.0))
    assert best_length(1, 1.0, 3, costs) == 3
    costs.host.hidden = True  # while the device computes: then 10 ms without guesses, 12 for 2 tokens with one
    assert costs.seconds_of_step(1, 1, 0) == 10
    assert costs.seconds_of_step(1, 2, 1) == 12
    costs.host = HostCosts(per_token=10.0)  # a token costs it as much, whichever way it comes
    assert best_length(1, 1.0, 3, costs) == 0


def test_what_gains_less_than_a_twentieth_is_left() -> None:
    assert best_length(1, 1.0, 3, StepCosts([1, 4], [1.0, 4.0], [0.0, 0.0])) == 0  # a token takes as long
    assert best_length(1, 1.0, 1, StepCosts([1, 2], [1.0, 1.92], [0.0, 0.0])) == 0  # 2/1.92 = 1.042
    assert best_length(1, 1.0, 1, StepCosts([1, 2], [1.0, 1.88], [0.0, 0.0])) == 1  # 2/1.88 = 1.064


def test_costs_between_and_behind_the_measured_points_lie_on_lines() -> None:
    costs = StepCosts([1, 3, 7], [10.0, 20.0, 40.0], [1.0, 2.0, 2.0])
    assert [costs.seconds_for(rows) for rows in (1, 2, 3, 5, 7, 9)] == [10, 15, 20, 30, 40, 50]
    assert [costs.draft_seconds_for(seqs) for seqs in (1, 2, 3, 7, 99)] == [1, 1.5, 2, 2, 2]
    assert StepCosts([1], [3.0], [0.0]).seconds_for(50) == 3


@given(st.lists(st.floats(1e-5, 10.0), min_size=2, max_size=6))
def test_more_rows_never_cost_less_however_the_measuring_shook(seconds: list[float]) -> None:
    costs = StepCosts([2**i for i in range(len(seconds))], seconds, [0.0] * len(seconds))
    found = [costs.seconds_for(rows) for rows in range(1, 100)]
    assert all(after >= before * (1 - 1e-12) for before, after in itertools.pairwise(found))


def test_what_was_not_looked_at_says_nothing_of_the_guesses() -> None:
    """Every other guess is right, so a draft of four is often wrong at its first: three were never looked at."""
    assert feed(DraftLength(4, COSTS), 4, 1).alpha == pytest.approx(0.5, abs=0.01)
    assert feed(DraftLength(4, COSTS), 4, 4).alpha == pytest.approx(1.0, abs=0.01)
    assert feed(DraftLength(4, COSTS), 4, 0).alpha == pytest.approx(0.0, abs=0.01)


def test_no_draft_leaves_the_mean_as_it_was() -> None:
    length = DraftLength(4, COSTS)
    assert feed(length, 0, 0).alpha == DraftLength(4, COSTS).alpha


def test_old_guesses_are_forgotten() -> None:
    length = feed(feed(DraftLength(4, COSTS), 1, 0, 10_000), 1, 1, 400)
    assert length.alpha > 0.8  # 400 of 10,400 were right


def test_length_follows_what_the_guesses_are_worth() -> None:
    dear = StepCosts([1, 5], [8.0, 12.0], [1.0, 1.0])
    length = DraftLength(4, dear)
    assert feed(length, 4, 4).choose(1) == 4
    assert feed(length, 4, 0).choose(1) == 0
    assert feed(length, 1, 1).choose(1) == 4


@pytest.mark.parametrize(("hidden", "best"), [(True, 0), (False, 4)])
def test_a_draft_that_says_nothing_costs_an_engine_that_could_run_ahead(hidden: bool, best: int) -> None:
    """A step of 10 ms hides 8 ms of the host's; one that waits for guesses takes 18, guesses or none."""
    costs = StepCosts([1, 5], [10.0, 10.0], [0.0, 0.0], HostCosts(fixed=8.0, hidden=hidden))
    length = feed(DraftLength(4, costs), 4, 4)
    assert length.choose(1) == 4
    assert feed(length, 0, 0).choose(1) == best
    assert feed(length, 4, 4).choose(1) == 4


def test_without_costs_it_is_always_the_most() -> None:
    assert feed(DraftLength(5, None), 5, 0).choose(256) == 5


def test_bad_guesses_are_looked_at_again_now_and_then() -> None:
    length = feed(DraftLength(4, StepCosts([1, 5], [8.0, 16.0], [1.0, 1.0])), 4, 0)
    chosen = [length.choose(1) for _ in range(3 * PROBE_EVERY)]
    assert sum(chosen) == 3 * PROBES
    assert max(chosen) == 1
    assert sum(chosen[: PROBE_EVERY // 2]) == 0  # and not at once
    assert feed(length, 1, 1).choose(1) == 4


def test_where_even_perfect_guesses_lose_none_is_made() -> None:
    length = DraftLength(4, StepCosts([1, 2, 300], [1.0, 2.0, 300.0], [0.1, 0.1, 0.1]))
    assert {length.choose(64) for _ in range(10 * PROBE_EVERY)} == {0}
