"""What a preset's run says of its cache, by hand."""

from __future__ import annotations

from folovllm.bench.workload import BenchModel
from tests.bench.support import bench_report
from workshop.bench.cache_use import CacheUse, CountingFoloVLLM, cells

PROMPT = list(range(1, 41))


def counting(folder, **options: int) -> CountingFoloVLLM:
    model = BenchModel("tiny", str(folder), "auto")
    return CountingFoloVLLM(model, "float32", "cpu", 64, block_size=16, **options)


def test_a_run_finds_what_the_one_before_has_computed(text_model_folder) -> None:
    """40 tokens are two full blocks and 8 more: the second time 32 of 40 are found."""
    ours = counting(text_model_folder, num_kv_blocks=8)
    ours.run([PROMPT], [4])
    ours.run([PROMPT], [4])
    assert [(use.queries, use.hits) for use in ours.uses] == [(40, 0), (40, 32)]
    assert [use.peak_share for use in ours.uses] == [3 / 8, 3 / 8]  # 43 tokens lie in 3 blocks
    assert cells(ours.uses)["prefix_hit_rate"] == 32 / 80


def test_who_gives_way_is_counted(text_model_folder) -> None:
    """Two sequences of 15 tokens begin in a block each; at the 17th token both want a second one, and 3 are there."""
    ours = counting(text_model_folder, num_kv_blocks=4, enable_prefix_caching=False)
    ours.run([PROMPT[:15], PROMPT[15:30]], [30, 30])
    (use,) = ours.uses
    assert use.preemptions == 1
    assert use.peak_share == 1.0


def test_without_a_cache_of_prefixes_there_is_no_hit_rate() -> None:
    assert cells([CacheUse(0, 0, 2, 0.5), CacheUse(0, 0, 1, 0.25)]) == {
        "kv_peak_share": 0.5, "prefix_hit_rate": None, "preemptions": 3,
    }  # fmt: skip


def test_a_preset_tells_hit_rate_use_and_preemptions(tmp_path) -> None:
    """Eight prompts are too long for one step, so those of the second find what the first has computed."""
    argv = ["preset", "shared-prefix", "--model", "embedded", "--num-prompts", "8", "--output-len", "2",
            "--rounds", "1"]  # fmt: skip
    (row,) = bench_report(argv, tmp_path / "preset.json")["rows"]
    assert 0 < row["prefix_hit_rate"] < 1
    assert 0 < row["kv_peak_share"] < 1
    assert row["preemptions"] == 0
