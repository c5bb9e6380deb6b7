"""What `bench serve-load` counts, on answers written by hand."""

from __future__ import annotations

import pytest

from folovllm.bench.serve_load import Answer, Target, percentile, row


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3, 1, 2, 4], 0.5) == 2
    assert percentile([3, 1, 2, 4], 0.99) == 4
    assert percentile([5], 0.5) == 5
    assert percentile([], 0.5) == 0


def test_times_are_counted_as_they_are_named() -> None:
    """First token after 0.1 s, three more 0.02 s apart, the last two of which came in one event."""
    quick = Answer(arrivals=[0.1, 0.12, 0.16], num_tokens=4, e2e=0.16)
    slow = Answer(arrivals=[0.5, 0.9], num_tokens=2, e2e=0.9)
    lost = Answer(problem="refused")
    found = row("x", [quick, slow, lost], 2.0, {"ttft": 100.0, "tpot": 20.1})
    assert (found["answered"], found["failed"], found["requests_per_s"], found["tokens_per_s"]) == (2, 1, 1.0, 3.0)
    assert (found["ttft_p50_ms"], found["ttft_p99_ms"]) == (100, 500)
    assert (found["tpot_p50_ms"], found["tpot_p99_ms"]) == (20, 400)
    assert (found["itl_p50_ms"], found["itl_p99_ms"]) == (40, 400)
    assert found["goodput_per_s"] == 0.5


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "https://x", "http://", "http://x:99999", "ftp://x"])
def test_only_an_address_will_do(url: str) -> None:
    with pytest.raises(ValueError, match="url must be like"):
        Target.of(url, None)
