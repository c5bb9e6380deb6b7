"""The predicted time line of a decode step: its bytes by hand, and what a tail does."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from folovllm.attention.splits import PLACES
from tests.bench.support import bench_report
from workshop.bench.decode_tail import TailModel
from workshop.bench.presets import PRESETS
from workshop.bench.time_line import (
    ATTENTION_LAUNCH,
    ATTENTION_SHARE,
    DRAW_LOGITS,
    DRAW_REST,
    DRAW_ROUND,
    DRAW_THREADS,
    GPUS,
    Gpu,
    attention_seconds,
    codes_bytes,
    codes_seconds,
    contexts_of_first_full_step,
    decode_steps,
    draw_seconds,
    predict,
    product_seconds,
    step_us,
    workload_seconds,
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


def test_prompts_come_in_beside_decodes_and_sequences_leave_as_they_end() -> None:
    """5 tokens a step: the first prompt and two tokens of the second, the rest beside the first's decode, and so on."""
    steps = list(decode_steps([[0] * 3, [0] * 6], [4, 3], budget=5))
    assert steps == [[], [4], [5, 7], [6, 8]]


def test_a_workload_is_its_decode_steps_and_the_operations_of_its_prompts() -> None:
    body, pairs = 28 * (1024 * (2 * 16 + 2 * 8) * 128 + 3 * 1024 * 3072), 28 * 16 * 128
    prefill = (2 * body * 64 + 4 * pairs * 64 * 65 // 2) / 650e12
    step = sum(row["us"] for row in predict(H200, [65])) / 1e6
    assert workload_seconds(H200, [[0] * 64], [2]) == pytest.approx(prefill + step)
    assert workload_seconds(H200, [[0] * 64], [9]) == pytest.approx(prefill + 8 * step)
    assert workload_seconds(H200, [[0] * 64], [209]) > prefill + 208 * step  # they become longer


@pytest.mark.slow
@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="no assembler beside Triton")
def test_the_draw_has_the_instructions_that_are_counted(tmp_path: Path) -> None:
    """Of the machine code that this Triton makes; another one's has some more or less."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "tests.m4.kernels_aot", "draw"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    draw = json.loads(run.stdout)["draw"]
    assert 32 * draw["warps"] == DRAW_THREADS
    # A thread computes 8 exponentials for 8 tokens each, and one more for what it has summed.
    sizes = [loop["size"] for loop in draw["loops"] if loop["MUFU.EX2"] == DRAW_LOGITS + 8]
    assert min(sizes) == pytest.approx(DRAW_ROUND, rel=0.05)
    assert draw["size"] - sum(sizes) > DRAW_REST


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
    assert [rows[part]["launches"] for part in ("attention", "products", "small kernels")] == [28, 112, 112]


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
    assert one == pytest.approx(256 * (10 * DRAW_ROUND + DRAW_REST) / (0.75 * 128 * 1.755e9))
    fast = Gpu("fast memory", 1e13)
    assert draw_seconds(fast, 132, 151_936) == one
    assert draw_seconds(fast, 133, 151_936) == 2 * one
    assert draw_seconds(Gpu("slow memory", 1e11), 132, 151_936) == pytest.approx(132 * 151_936 * 2 / 0.85e11)


def test_the_report(tmp_path: Path) -> None:
    data = bench_report(["timeline", "--gpu", "h100"], tmp_path / "line.json")
    assert [row["part"] for row in data["rows"]][:2] == ["attention", "products"]
    assert sum(row["share"] for row in data["rows"]) == pytest.approx(1)
    assert data["hardware"] == {"predicted for": "H100, 3 TB/s, 132 SMs"}
    assert data["notes"][0].startswith("A prediction: nothing was measured.")
    assert data["rows"][0]["us"] > ATTENTION_LAUNCH * 28 * 1e6


def test_codes_of_4_bits_by_hand() -> None:
    """4,096 by 4,096: 8.4 MB of codes and 0.66 of scales and offsets. Its instructions take longer on an H200, where a
    tile of rows is 64: one is 4.5 us, four are 18."""
    assert codes_bytes(1, 4096, 4096) == 4096 * 2048 + 5 * 4096 * 32 + 2 * 2 * 4096
    each = 4096 * 4096 * 5.6 / (0.75 * 132 * 128 * 1.755e9)
    assert codes_seconds(H200, 1, 4096, 4096) == pytest.approx(each + 1.5e-6)
    assert codes_seconds(H200, 256, 4096, 4096) == pytest.approx(4 * each + 1.5e-6)
    slow = Gpu("slow", 1e12)  # one that reads more slowly than it takes codes apart
    assert codes_seconds(slow, 1, 4096, 4096) == pytest.approx(codes_bytes(1, 4096, 4096) / 0.9e12 + 1.5e-6)


def test_a_product_with_few_outputs_is_two_launches() -> None:
    """1,024 outputs of 3,072 inputs are 16 programs in 4 splits, whose sums are written and read in float32."""
    whole = 1024 * 3072 * 5.6 / (0.75 * 132 * 128 * 1.755e9) + 1.5e-6
    assert codes_seconds(H200, 1, 1024, 3072) == pytest.approx(whole + 2.3e-6 + 2 * 4 * 4 * 1024 / H200.bandwidth)


def test_codes_gain_with_few_rows_and_lose_with_many() -> None:
    """Gate and up of an 8B Qwen3-like model, 28,672 by 4,096."""
    assert codes_seconds(H200, 1, 28672, 4096) == pytest.approx(0.5 * product_seconds(H200, 1, 28672, 4096), rel=0.01)
    assert codes_seconds(H200, 256, 28672, 4096) > product_seconds(H200, 256, 28672, 4096)


def test_a_steps_codes_change_its_products_alone() -> None:
    plain, codes = predict(H200, [1024] * 8), predict(H200, [1024] * 8, codes=True)
    assert [row["part"] for row, other in zip(plain, codes, strict=True) if row != other] == ["products"]
    assert step_us(H200, 8, codes=True) == pytest.approx(sum(row["us"] for row in codes))


def test_the_report_says_what_codes_change(tmp_path: Path) -> None:
    found = bench_report(["timeline", "--quantization", "w4a16"], tmp_path / "timeline.json")
    plain = bench_report(["timeline"], tmp_path / "timeline.json")
    assert found["rows"][1]["megabytes"] < plain["rows"][1]["megabytes"]
    assert "Weights in 4 bits, the head in 16. Other steps: 1 sequences of 1,024 tokens 1" in found["notes"][-1]
