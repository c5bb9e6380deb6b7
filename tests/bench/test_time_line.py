"""The predicted time line of a decode step: its bytes by hand, and what a tail does."""

from __future__ import annotations

from pathlib import Path

import pytest

from folovllm.attention.splits import PLACES
from tests.bench.support import bench_report
from workshop.bench.decode_tail import TailModel
from workshop.bench.presets import PRESETS
from workshop.bench.time_line import (
    ATTENTION_LAUNCH,
    ATTENTION_SHARE,
    GPUS,
    Gpu,
    attention_seconds,
    contexts_of_first_full_step,
    draw_seconds,
    predict,
    product_seconds,
)

H200 = GPUS["h200"]
MODEL = TailModel(ATTENTION_SHARE * H200.bandwidth)


def test_the_step_is_the_first_in_which_all_decode() -> None:
    contexts = contexts_of_first_full_step()
    prompts = [len(prompt) for prompt in PRESETS["nano-vllm"].draw()[0]]
    said = [context - prompt for context, prompt in zip(contexts, prompts, strict=True)]
    assert said[-1] == 1  # the last prompt has just come in
    assert said == sorted(said, reverse=True)
    # 142,827 tokens of prompts, and fewer of them in a step the more sequences decode.
    assert 142_827 / 2048 < said[0] < 142_827 / (2048 - 256)


def test_bytes_and_operations_by_hand() -> None:
    rows = {row["part"]: row for row in predict(H200, [1024] * 256)}
    assert rows["attention"]["megabytes"] == pytest.approx(28 * 256 * 1024 * 4096 / 1e6)
    assert rows["attention"]["gflop"] == pytest.approx(28 * 256 * 1024 * 4 * 16 * 128 / 1e9)
    weights = 1024 * 4096 + 2048 * 1024 + 1024 * 6144 + 3072 * 1024
    assert rows["products"]["gflop"] == pytest.approx(28 * 2 * 256 * weights / 1e9)
    assert rows["products"]["megabytes"] > 28 * 2 * weights / 1e6
    assert rows["head"]["gflop"] == pytest.approx(2 * 256 * 151_936 * 1024 / 1e9)
    assert rows["sampling"]["megabytes"] == pytest.approx(256 * 151_936 * 2 / 1e6)
    assert rows["upload"]["megabytes"] == pytest.approx(256 * (32 + 4 * 64) / 1e6)
    assert [rows[part]["launches"] for part in ("attention", "products", "small kernels")] == [28, 112, 140]


def test_full_of_equal_programs_attention_reads_at_the_whole_bandwidth() -> None:
    """99 sequences of 8 KV heads fill the places twice, and both times the programs begin."""
    assert 2 * PLACES == 99 * 8
    seconds = attention_seconds(H200, [640] * 99, kv_heads=8, head_bytes=512)
    assert seconds == pytest.approx(99 * 640 * 4096 / (0.95 * 4.3e12) + 2 * MODEL.start)


def test_a_program_alone_is_no_faster_than_a_program() -> None:
    alone = MODEL.start + 64 * 512 / MODEL.program_bandwidth
    assert attention_seconds(H200, [64], kv_heads=1, head_bytes=512) == pytest.approx(alone)


def test_a_sequence_that_is_much_longer_than_the_others_is_a_tail() -> None:
    even = attention_seconds(H200, [640] * 132, kv_heads=8, head_bytes=512)
    tail = attention_seconds(H200, [640] * 131 + [9600], kv_heads=8, head_bytes=512)
    assert tail > 1.5 * even


def test_a_product_of_few_rows_waits_for_its_weight() -> None:
    gpu = Gpu("slow memory", 1e12)
    assert product_seconds(gpu, 1, 6144, 1024) == pytest.approx(2 * (6144 * 1024 + 1024 + 6144) / 0.9e12 + 1.5e-6)


def test_a_draw_takes_a_wave_for_every_132_rows_or_what_its_bytes_take() -> None:
    one = draw_seconds(H200, 1, 151_936)
    assert one == pytest.approx(151_936 * 42.5 / (0.75 * 128 * 1.755e9))
    assert draw_seconds(H200, 132, 151_936) == one
    assert draw_seconds(H200, 133, 151_936) == 2 * one
    assert draw_seconds(Gpu("slow memory", 1e11), 132, 151_936) == pytest.approx(132 * 151_936 * 2 / 0.85e11)


def test_the_report(tmp_path: Path) -> None:
    data = bench_report(["timeline", "--gpu", "h100"], tmp_path / "line.json")
    assert [row["part"] for row in data["rows"]][:2] == ["attention", "products"]
    assert sum(row["share"] for row in data["rows"]) == pytest.approx(1)
    assert data["hardware"] == {"predicted for": "H100, 3 TB/s, 132 SMs"}
    assert data["notes"][0].startswith("A prediction: nothing was measured.")
    assert data["rows"][0]["us"] > ATTENTION_LAUNCH * 28 * 1e6
