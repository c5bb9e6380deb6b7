"""Percentiles, goodput and throughput of a load, against numbers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from folovllm.bench.metrics import RequestTimes, load_row, parse_goals, percentile, percentiles_ms

# First token after 0.1 s, three more 0.02 s apart, the last two of which came together; and a slow one of two tokens.
QUICK = RequestTimes(arrivals=[0.1, 0.12, 0.16], num_tokens=4, e2el=0.16)
SLOW = RequestTimes(arrivals=[0.5, 0.9], num_tokens=2, e2el=0.9)
LOST = RequestTimes(problem="refused")


def test_a_request_s_times_are_what_their_names_say() -> None:
    assert QUICK.ttft == 0.1
    assert QUICK.tpot == pytest.approx(0.02)
    assert QUICK.itl == pytest.approx([0.02, 0.04])
    assert RequestTimes([0.3], 1, 0.3).tpot == 0


@pytest.mark.parametrize("percent", [0, 50, 95, 99, 100])
def test_percentiles_are_numpy_s(percent: float) -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 50)
    assert percentiles_ms("itl", []) == {"itl_p50_ms": None, "itl_p95_ms": None, "itl_p99_ms": None}


def test_a_load_is_the_sum_of_its_requests() -> None:
    row = load_row([QUICK, SLOW, LOST], seconds=2.0, goals={"ttft": 100.0, "tpot": 20.1})
    assert (row["answered"], row["failed"]) == (2, 1)
    assert (row["requests_per_s"], row["output_tokens_per_s"]) == (1.0, 3.0)
    assert row["goodput_per_s"] == 0.5  # SLOW's first token comes too late
    assert row["ttft_p50_ms"] == pytest.approx(300)
    assert row["ttft_p99_ms"] == pytest.approx(100 + 0.99 * 400)
    assert row["itl_p50_ms"] == pytest.approx(40)  # of 20, 40 and 400
    assert row["e2el_p50_ms"] == pytest.approx(530)


def test_a_goal_asks_of_every_request_that_it_meets_all_limits() -> None:
    assert load_row([QUICK, SLOW], 1.0, {"ttft": 500.0})["goodput_per_s"] == 2
    assert load_row([QUICK, SLOW], 1.0, {"ttft": 500.0, "e2el": 160.0})["goodput_per_s"] == 1
    assert load_row([LOST], 1.0, {"ttft": 500.0})["goodput_per_s"] == 0
    assert load_row([QUICK], 1.0, {})["goodput_per_s"] is None


def test_one_token_has_no_time_per_further_token() -> None:
    assert load_row([QUICK, RequestTimes([0.1], 1, 0.1)], 1.0, {})["tpot_p50_ms"] == pytest.approx(20)


def test_goals_are_read_as_vllm_s() -> None:
    assert parse_goals(["ttft:200", "tpot:50"]) == {"ttft": 200.0, "tpot": 50.0}


@pytest.mark.parametrize("texts", [["itl:1"], ["ttft"], ["ttft:"], ["ttft:x"], ["ttft:0"], ["ttft:nan"]])
def test_a_wrong_goal_is_named(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="goodput must be of ttft:MS, tpot:MS, e2el:MS"):
        parse_goals(texts)


def test_a_goal_is_given_once() -> None:
    with pytest.raises(ValueError, match="two for 'ttft'"):
        parse_goals(["ttft:1", "ttft:2"])
