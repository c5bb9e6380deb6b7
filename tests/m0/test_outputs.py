"""Outputs and metrics, with numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from folovllm import CompletionOutput, RequestMetrics, RequestOutput


def test_metrics_of_a_finished_request() -> None:
    metrics = RequestMetrics(arrival_time=100.0, first_token_time=100.5, finished_time=102.5, num_output_tokens=5)
    assert metrics.ttft == 0.5
    assert metrics.tpot == 0.5  # 2 seconds for the 4 tokens after the first
    assert metrics.e2e_latency == 2.5


def test_metrics_that_are_not_known_are_none() -> None:
    metrics = RequestMetrics(arrival_time=100.0)
    assert (metrics.ttft, metrics.tpot, metrics.e2e_latency) == (None, None, None)
    metrics.first_token_time = 101.0
    assert (metrics.ttft, metrics.tpot, metrics.e2e_latency) == (1.0, None, None)


def test_one_token_has_no_time_per_further_token() -> None:
    assert RequestMetrics(0.0, 1.0, 1.0, num_output_tokens=1).tpot is None


@pytest.mark.parametrize(("reason", "finished"), [(None, False), ("stop", True), ("length", True), ("abort", True)])
def test_a_completion_is_finished_when_it_has_a_reason(reason: str | None, finished: bool) -> None:
    output = CompletionOutput(index=0, text="", token_ids=[], finish_reason=reason)  # type: ignore[arg-type]
    assert output.finished() is finished


def test_request_outputs_do_not_share_their_default_list() -> None:
    a, b = RequestOutput("a", None, [1]), RequestOutput("b", None, [1])
    a.outputs.append(CompletionOutput(0, "x", [1]))
    assert b.outputs == []
