"""How many replicas a load needs. By hand."""

from __future__ import annotations

import pytest

from folovllm.serving.replicas.scaling import Scaling


def test_thirteen_requests_at_four_each_need_four_replicas() -> None:
    scaling = Scaling(1, 8, target=4, up_after=2.0)
    assert scaling.wanted(1, 13, now=0.0) == 1  # it may be over in a moment
    assert scaling.wanted(1, 13, now=1.9) == 1
    assert scaling.wanted(1, 13, now=2.0) == 4
    assert scaling.wanted(4, 13, now=2.1) == 4


def test_a_moment_of_less_begins_the_waiting_anew() -> None:
    scaling = Scaling(1, 8, target=4, up_after=2.0)
    scaling.wanted(1, 13, now=0.0)
    scaling.wanted(1, 4, now=1.0)
    assert scaling.wanted(1, 13, now=2.5) == 1
    assert scaling.wanted(1, 13, now=4.5) == 4


def test_they_go_one_by_one_and_never_below_the_least() -> None:
    scaling = Scaling(2, 8, target=4, down_after=30.0)
    numbers, here = [], 4
    for now in range(0, 200, 10):
        here = scaling.wanted(here, 0, float(now))
        numbers.append(here)
    assert numbers[:9] == [4, 4, 4, 3, 3, 3, 3, 2, 2]
    assert set(numbers[9:]) == {2}


def test_never_above_the_most() -> None:
    scaling = Scaling(1, 3, target=1, up_after=0.0)
    assert scaling.wanted(1, 100, now=0.0) == 3


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((3, 2), r"min_replicas must be at most max_replicas \(2\), got 3"),
        ((0, 2), "min_replicas must be positive, got 0"),
        ((1, 2, 0), "target_ongoing_requests must be positive, got 0"),
    ],
)
def test_wrong_bounds_are_refused_by_name(bounds: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scaling(*bounds)
