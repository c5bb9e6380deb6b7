"""Arrivals have the mean and the deviation that they are asked for, and a closed loop never has more under way."""

from __future__ import annotations

import asyncio
import math
import statistics

import pytest

from folovllm.bench.arrivals import Arrivals, send

COUNT = 20_000


def gaps(arrivals: Arrivals) -> list[float]:
    times = arrivals.times(COUNT, seed=1)
    return [after - before for before, after in zip([0.0, *times], times, strict=False)]


@pytest.mark.parametrize(("rate", "burstiness"), [(4.0, 1.0), (4.0, 0.25), (100.0, 4.0)])
def test_gaps_have_the_mean_and_the_coefficient_of_variation_of_a_gamma(rate: float, burstiness: float) -> None:
    """Its mean is 1 / rate, and its deviation over that is 1 / sqrt(burstiness)."""
    found = gaps(Arrivals(rate, burstiness))
    mean = statistics.mean(found)
    assert mean == pytest.approx(1 / rate, rel=0.05)
    assert statistics.stdev(found) / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_poisson_counts_vary_as_much_as_their_mean() -> None:
    """The number of arrivals in a second has its mean as its variance, which no even spacing has."""
    times = Arrivals(4.0).times(COUNT, seed=2)
    counts = [0] * (int(times[-1]) + 1)
    for moment in times:
        counts[int(moment)] += 1
    assert statistics.variance(counts[:-1]) == pytest.approx(4.0, rel=0.1)


def test_a_seed_repeats_the_moments() -> None:
    arrivals = Arrivals(4.0, 0.5)
    assert arrivals.times(5, 7) == arrivals.times(5, 7) != arrivals.times(5, 8)


def test_without_a_rate_all_come_at_once() -> None:
    assert Arrivals().times(3, 0) == [0.0, 0.0, 0.0]


def test_a_closed_loop_has_never_more_under_way_and_keeps_the_order() -> None:
    under_way, most = 0, 0

    async def ask(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return item * 10

    answers = asyncio.run(send(range(20), ask, Arrivals(max_concurrency=3)))
    assert most == 3
    assert answers == [item * 10 for item in range(20)]


def test_requests_are_sent_no_earlier_than_they_arrive() -> None:
    arrivals, moments = Arrivals(200.0), []

    async def ask(item: int) -> None:
        moments.append(asyncio.get_running_loop().time())

    async def run() -> float:
        began = asyncio.get_running_loop().time()
        await send(range(10), ask, arrivals, seed=3)
        return began

    began = asyncio.run(run())
    late = [moment - began - due for moment, due in zip(moments, arrivals.times(10, 3), strict=True)]
    assert min(late) > -0.005


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"request_rate": 0.0}, "request_rate"),
        ({"request_rate": math.nan}, "request_rate"),
        ({"request_rate": 1.0, "burstiness": 0.0}, "burstiness"),
        ({"burstiness": 0.5}, "burstiness"),
        ({"max_concurrency": 0}, "max_concurrency"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        Arrivals(**fields)  # type: ignore[arg-type]


def test_a_load_says_what_it_is() -> None:
    loads = [Arrivals(), Arrivals(max_concurrency=1), Arrivals(max_concurrency=8), Arrivals(4.0), Arrivals(4.0, 0.5)]
    assert [load.describe() for load in loads] == [
        "all at once",
        "1 client",
        "8 clients",
        "4 requests/s",
        "4 requests/s, burstiness 0.5",
    ]
