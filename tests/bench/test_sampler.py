"""The sampler's benchmark compares two programs that do the same, and reports both."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from folovllm import SamplingParams
from tests.m1.sampling_reference import distribution, distribution_of, make_row
from workshop.bench import sampler as bench

FILTERS = [
    {"temperature": 0.8},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {"top_p": 0.9},
    {"min_p": 0.05},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_naive_peer_has_the_exact_distribution(filters: dict) -> None:
    logits = bench.make_logits("normal", 1, 300)
    found = bench.naive_probabilities(logits, SamplingParams(**filters), [])[0]
    np.testing.assert_allclose(found, distribution(logits[0].tolist(), **filters), rtol=1e-4, atol=1e-9)


def test_the_naive_penalties_are_the_samplers() -> None:
    (params,) = [case.params.clone() for case in bench.cases() if "penalties" in case.label]
    params.logprobs, params.logprobs_mode = 300, "processed"
    logits = bench.make_logits("normal", 1, 300)
    row = make_row(params, prompt=[1, 2, 3, 3], output=[3, 4, 4, 299])
    found = bench.naive_probabilities(logits, params, [row])[0]
    np.testing.assert_allclose(found, distribution_of(logits[0], row), rtol=1e-4, atol=1e-9)


def test_peaked_logits_decide_top_p_in_dozens_of_tokens_and_normal_ones_in_thousands() -> None:
    params = SamplingParams(top_p=0.9)
    sizes = [
        int((bench.naive_probabilities(bench.make_logits(kind, 1, 151_936), params, []) > 0).sum())
        for kind in ("peaked", "normal")
    ]
    assert sizes[0] < 100
    assert 1024 < sizes[1] < 16_384


def test_the_report_has_a_row_for_each_setting_vocabulary_and_batch() -> None:
    report = bench.run([1, 3], [50, 3000], rounds=1, seconds_per_case=0.0)
    assert len(report.rows) == len(bench.cases()) * 4
    for row in json.loads(report.to_json())["rows"]:
        assert row["speedup"] == pytest.approx(row["naive_ms"] / row["sampler_ms"])
    assert report.render().row_count == len(report.rows)


@pytest.mark.parametrize(
    "sizes, message",
    [
        (([0], [50]), "batch_sizes must be at least 1, got 0"),
        (([1], [-5]), "vocab_sizes must be at least 1, got -5"),
    ],
)
def test_wrong_sizes_are_refused(sizes: tuple[list[int], list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        bench.run(*sizes)


def test_naive_sampling_draws_ids_of_the_vocabulary() -> None:
    torch.manual_seed(0)
    logits = bench.make_logits("normal", 4, 100)
    for case in bench.cases():
        tokens = bench.naive_sample(logits, case.params, [make_row(case.params, [1], [2])] * 4)
        assert tokens.shape == (4,)
        assert ((tokens >= 0) & (tokens < 100)).all()


def test_the_bench_times_the_kernel_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "has_kernel", lambda device: True)
    rows = bench.run([2], [60], rounds=1, seconds_per_case=0.0).rows
    for row in rows:
        if row["setting"] == "greedy":
            assert row["triton_ms"] is row["triton_ratio"] is None
        else:
            assert row["triton_ratio"] == pytest.approx(row["sampler_ms"] / row["triton_ms"])


def test_without_a_gpu_the_bench_reports_what_it_always_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "default_device", lambda: "cpu")
    report = bench.run([1], [60], rounds=1, seconds_per_case=0.0)
    assert report.columns == ["setting", "logits", "vocab", "batch", "naive_ms", "sampler_ms", "speedup"]
    assert set(report.rows[0]) == set(report.columns)
