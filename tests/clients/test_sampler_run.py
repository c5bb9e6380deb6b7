"""`workshop.bench sampler-run`: two engines that differ in the draw alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from folovllm.bench.workload import bench_model
from folovllm.sampling_params import SamplingParams
from workshop.bench.presets import PRESETS
from workshop.bench.sampler_run import Drawing, run

SMALL = replace(PRESETS["gpt2-sampling"], num_requests=3, longest_output=4)


def test_with_one_candidate_both_draw_the_same_tokens() -> None:
    """top_k=1 leaves the likeliest token, whoever draws; so what else a run computes is the same for both."""
    only, tokens = replace(SMALL, top_k=1), []
    with bench_model(None, "qwen3-tiny") as model:
        for naive in (True, False):
            engine = Drawing("x", only, model, "float32", "cpu", 64)
            if naive:
                engine.draw_naively(SamplingParams(**only.sampling))
            seen: dict[str, list[int]] = {}
            step = engine.engine.step

            def watched(step=step, seen=seen):  # type: ignore[no-untyped-def]
                outputs = step()
                seen.update({output.request_id: list(output.outputs[0].token_ids) for output in outputs})
                return outputs

            engine.engine.step = watched  # type: ignore[method-assign]
            engine.run([[1, 2, 3], [4, 5, 6]], [5, 5])
            tokens.append(seen)
            assert len(engine.draw_seconds) == 5
    assert tokens[0] == tokens[1]
    assert [len(ids) for ids in tokens[0].values()] == [5, 5]


def test_the_report_sets_one_against_the_other() -> None:
    with bench_model(None, "qwen3-tiny") as model:
        report = run(model, SMALL, command="c", dtype="float32", device="cpu", rounds=2)
    naive, fast = report.rows
    assert (naive["sampling"], fast["sampling"]) == ("naive", "fast")
    assert (naive["requests"], naive["output_tokens"], naive["vocab"]) == (3, 12, 512)
    assert naive["speedup"] == 1
    assert fast["speedup"] == pytest.approx(naive["seconds"] / fast["seconds"])
    assert json.loads(report.to_json())["samples"][0]["seconds"] == list(report.samples[0]["seconds"])
