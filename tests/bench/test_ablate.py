"""One feature left out at a time: what is not here says why, what is left out is missing, the rest stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import SamplingParams
from folovllm.bench.compare import samples_of
from folovllm.bench.contestant import FoloVLLM
from folovllm.bench.workload import BenchModel
from folovllm.models.one_call import OneCallOps
from folovllm.utils.cpu_kernels import unavailable_reason
from tests.bench.support import bench_report, refusal
from tests.helpers import make_hf_folder
from tests.m4.cuda_support import serve
from workshop.bench import ablate
from workshop.bench.ablate import FEATURES

pytestmark = pytest.mark.slow
ARGV = ["ablate", "--shape", "qwen3-tiny", "--dtype", "float32", "--device", "cpu", "--num-requests", "2",
        "--input-len", "8", "--output-len", "3", "--rounds", "2"]  # fmt: skip
CPU = torch.device("cpu")


@pytest.mark.exhaustive
def test_every_feature_has_a_row_and_what_a_cpu_lacks_says_so(tmp_path: Path) -> None:
    data = bench_report(ARGV, tmp_path / "x.json")
    rows = {row["feature"]: row for row in data["rows"]}
    assert list(rows) == [feature.what for feature in FEATURES.values()]
    assert rows["CUDA graphs"]["verdict"] == "not here: a CPU has no CUDA graphs"
    assert rows["running ahead"]["verdict"].startswith("not here: ")
    assert rows["fast sampling"]["verdict"].startswith("not here: ")
    assert rows["prefix caching"]["verdict"] == "too few rounds"  # two cannot be sure
    assert rows["prefix caching"]["sure"] == 0.5


def test_a_ratio_is_the_middle_one_of_the_rounds(tmp_path: Path) -> None:
    data = bench_report([*ARGV, "--features", "prefix-caching", "--rounds", "3"], tmp_path / "x.json")
    (row,), whole, less = data["rows"], samples_of(data, 0, "seconds"), samples_of(data, 0, "seconds_without")
    ratios = sorted(without / with_it for with_it, without in zip(whole, less, strict=True))
    assert (row["low"], row["ratio"], row["high"]) == pytest.approx(tuple(ratios))


@pytest.mark.parametrize("name", ["chunked-prefill", "prefix-caching", "one-call", "fusing", "kernels", "threads"])
def test_what_is_left_out_is_missing_and_the_tokens_are_the_same(name: str, tmp_path: Path) -> None:
    folder, feature = make_hf_folder(tmp_path), FEATURES[name]

    def engine(**options: object) -> FoloVLLM:
        return FoloVLLM(BenchModel("tiny", str(folder), "auto"), "float32", "cpu", 40, num_kv_blocks=40, **options)

    def say(ours: FoloVLLM) -> list[dict[str, Any]]:
        params = SamplingParams(temperature=0, max_tokens=6)
        return serve(ours.engine, [([7, 3, 9], params), ([5] * 20, params)])

    whole = engine()
    with feature.inside(CPU):
        less = engine(**feature.options)
        said = say(less)
    assert said == say(whole)
    config, ops = less.engine.config, less.engine.runner.model.model.ops
    everything = whole.engine.runner.model.model.ops
    assert config.cache_config.enable_prefix_caching == (name != "prefix-caching")
    assert config.scheduler_config.enable_chunked_prefill == (name != "chunked-prefill")
    if unavailable_reason() is None:
        assert (ops.rms_norm is not everything.rms_norm) == (name in ("fusing", "kernels"))
        assert (type(ops) is OneCallOps) == (name in ("chunked-prefill", "prefix-caching", "threads"))
        assert type(everything) is OneCallOps


def test_after_a_feature_was_left_out_everything_is_there_again() -> None:
    before = torch.get_num_threads(), os.environ.get("FOLOVLLM_CPU_KERNELS")
    for feature in FEATURES.values():
        with pytest.raises(ZeroDivisionError), feature.inside(CPU):
            _ = 1 / 0
    assert before == (torch.get_num_threads(), os.environ.get("FOLOVLLM_CPU_KERNELS"))


def test_prompts_begin_alike_as_far_as_they_were_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[list[int]]] = []
    run = ablate.FoloVLLM.run

    def spy(self: ablate.FoloVLLM, prompts: list[list[int]], num_tokens: int) -> object:
        seen.append(prompts)
        return run(self, prompts, num_tokens)

    monkeypatch.setattr(ablate.FoloVLLM, "run", spy)
    bench_report([*ARGV, "--features", "prefix-caching", "--shared-len", "5", "--rounds", "1"], tmp_path / "x.json")
    measured = seen[-1]
    assert measured[0][:5] == measured[1][:5]
    assert measured[0][5:] != measured[1][5:]
    assert seen[-2] == measured  # both engines of a round get the same
    assert seen[0][0][:5] != measured[0][:5]  # and each round others


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--features", "wings"], "features must be of graphs, ahead, chunked-prefill"),
        (["--shared-len", "8"], "shared_len must be in [0, 7], less than input_len, got 8"),
        (["--rounds", "0"], "rounds must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert text in refusal([*ARGV, *argv], capsys).replace("\n", " ")
