"""Intervals of a ratio: small enough to count by hand."""

from __future__ import annotations

import random

import pytest

from folovllm.bench.spread import apart, in_turn, mann_whitney_ways


def test_the_orders_of_two_and_two_are_counted() -> None:
    # aabb 0, abab 1, abba and baab 2, baba 3, bbaa 4
    assert mann_whitney_ways(2, 2) == [1, 1, 2, 1, 1]


def test_three_rounds_of_each_cannot_be_told_apart() -> None:
    # Of 20 orders, two have all of one above the other: 1 - 2/20.
    found = apart([1.0, 1.1, 1.2], [10.0, 11.0, 12.0])
    assert found.level == pytest.approx(0.9)
    assert found.verdict == "too few rounds"


def test_four_rounds_of_each_can() -> None:
    found = apart([1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 3.0])
    assert (found.ratio, found.low, found.high) == (2.0, 2.0, 3.0)
    assert found.level == pytest.approx(1 - 2 / 70)
    assert found.verdict == "above"
    assert apart([2.0, 2.0, 2.0, 3.0], [1.0] * 4).verdict == "below"


def test_one_slow_round_moves_neither_ratio_nor_verdict() -> None:
    a = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05]
    assert apart(a, [value * 1.001 for value in a[:-1]] + [50.0]).verdict == "noise"


def test_five_rounds_in_turn_are_as_sure_as_five_coins() -> None:
    found = in_turn([1.0] * 5, [2.0, 3.0, 4.0, 5.0, 6.0])
    assert (found.ratio, found.low, found.high, found.level) == (4.0, 2.0, 6.0, 1 - 2 / 32)
    assert found.verdict == "too few rounds"


def test_nine_rounds_in_turn_leave_out_the_outermost_of_each_end() -> None:
    # P(at most 1 head of 9) = 10/512; at most 2 would be 46/512, more than 2.5%.
    found = in_turn([1.0] * 9, [float(value) for value in range(1, 10)])
    assert (found.low, found.high, found.level) == (2.0, 8.0, pytest.approx(1 - 20 / 512))


def test_the_interval_excludes_one_where_the_mann_whitney_test_tells_them_apart() -> None:
    rng = random.Random(0)
    for _ in range(200):
        a = [rng.lognormvariate(0, 0.3) for _ in range(6)]
        b = [rng.lognormvariate(0.2, 0.3) for _ in range(5)]
        wrong_way = sum(new < old for old in a for new in b)
        ways = mann_whitney_ways(6, 5)
        tail = sum(ways[: min(wrong_way, 30 - wrong_way) + 1]) / sum(ways)
        assert (apart(a, b).verdict != "noise") == (2 * tail <= 0.05)


def test_equal_machines_are_told_apart_as_seldom_as_promised() -> None:
    rng = random.Random(1)
    draws = [[[rng.lognormvariate(0, 1) for _ in range(5)] for _ in "ab"] for _ in range(2000)]
    wrong = sum(apart(a, b).verdict != "noise" for a, b in draws) / len(draws)
    assert wrong < 0.045  # promised: 3.2%


@pytest.mark.parametrize("values", [[], [1.0, 0.0]])
def test_what_is_no_time_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="b must be positive numbers, at least one"):
        apart([1.0], values)
