"""The page of a decode step's time line says what its model predicts, in both languages, and that it predicts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from folovllm.attention.splits import PLACES
from milestones.site.directives import written
from workshop.bench.__main__ import build_parser
from workshop.bench.gpu_kernels import (
    ATTENTION_LAUNCH,
    ATTENTION_SHARE,
    COPY_SHARE,
    DRAW_SHARE,
    GPUS,
    HOST_LINK,
    LAUNCH,
    PRODUCT_LAUNCH,
    attention_seconds,
    draw_seconds,
    product_bytes,
    product_seconds,
)
from workshop.bench.time_line import LARGE, predict, run
from workshop.bench.workload_steps import contexts_of_first_full_step

ROOT = Path(__file__).parents[2]
H200 = GPUS["h200"]
CONTEXTS = contexts_of_first_full_step()
ROWS, VOCAB = len(CONTEXTS), 151_936
PRODUCTS = [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]  # of a layer of Qwen3-0.6B: [outputs, inputs]


@pytest.fixture(params=["en", "zh"])
def page(request: pytest.FixtureRequest) -> str:
    return "\n".join(written((ROOT / "docs" / request.param / "m4/time-line.md").read_text(encoding="utf-8")))


def us(seconds: float, digits: int = 0) -> str:
    return f"{seconds * 1e6:,.{digits}f}"


def test_the_table_is_what_the_model_predicts_today() -> None:
    said = json.loads((ROOT / "docs/benchmarks/data/decode-time-line-h200.json").read_text())
    parts = predict(H200, CONTEXTS)
    total = sum(row["us"] for row in parts)
    for row, computed in zip(said["rows"], parts, strict=True):
        assert row == pytest.approx({**computed, "share": computed["us"] / total})
    assert f"together {total:,.0f} us" in said["notes"][0]


def test_it_says_what_is_predicted_and_what_was_measured(page: str) -> None:
    assert ("**prediction** for an H200" in page) or ("对 H200 的**预测**" in page)
    assert page.index("<!-- bench decode-time-line-h200") < page.index('<a id="measured">') < page.index("profile-h200")
    said = json.loads((ROOT / "docs/benchmarks/data/decode-time-line-h200.json").read_text())
    assert "predicted" in said["title"]
    assert list(said["hardware"]) == ["predicted for"]
    assert said["notes"][0].startswith("A prediction: nothing was measured.")


def test_what_the_text_says_of_attention(page: str) -> None:
    num_bytes, launch = sum(CONTEXTS) * 4096, attention_seconds(H200, CONTEXTS, 8, 512)
    reading = num_bytes / (ATTENTION_SHARE * H200.bandwidth)
    for said in (
        f"{sum(CONTEXTS) / ROWS:.0f}", f"{num_bytes / 1e6:.0f} MB", f"{us(reading)} µs",
        f"{us(ATTENTION_LAUNCH, 1)} µs", f"{us(launch + ATTENTION_LAUNCH)} µs", f"{us(launch - reading)} µs",
        f"{ATTENTION_SHARE:.0%}", str(PLACES),
    ):  # fmt: skip
        assert said in page, said


def test_what_the_text_says_of_products(page: str) -> None:
    waves = [us(product_seconds(H200, ROWS, n, k) - PRODUCT_LAUNCH, 1) for n, k in PRODUCTS]
    places = [page.index(wave) for wave in waves]
    assert all(0 < later - earlier < 12 for earlier, later in pairwise(places)), waves
    layer = sum(product_bytes(ROWS, n, k) for n, k in PRODUCTS)
    for said in (f"{2 * sum(n * k for n, k in PRODUCTS) / 1e6:.1f} MB", f"{layer / 1e6:.0f} MB",
                 f"{us(layer / (COPY_SHARE * H200.bandwidth))} µs", f"{us(PRODUCT_LAUNCH, 1)} µs"):  # fmt: skip
        assert said in page, said


def test_what_the_text_says_of_the_rest(page: str) -> None:
    rows = {row["part"]: row for row in predict(H200, CONTEXTS)}
    small = rows["small kernels"]["megabytes"] * 1e6 / 28
    head = product_bytes(ROWS, VOCAB, 1024)
    for said in (
        f"{small / ROWS:,.0f}", f"{us(small / H200.bandwidth, 1)} µs", f"{us(LAUNCH, 1)} µs",
        f"{rows['small kernels']['us']:.0f} µs",
        f"{2 * VOCAB * 1024 / 1e6:.0f} MB", f"{us(head / (COPY_SHARE * H200.bandwidth))} µs",
        us(product_seconds(H200, ROWS, VOCAB, 1024) - PRODUCT_LAUNCH),
        f"{us(2 * ROWS * VOCAB / (DRAW_SHARE * H200.bandwidth))} µs", f"{us(draw_seconds(H200, 1, VOCAB))} µs",
        f"{rows['upload']['megabytes'] * 1e3:.0f} KB",
    ):  # fmt: skip
        assert said in page, said
    assert rows["upload"]["us"] == pytest.approx((rows["upload"]["megabytes"] * 1e6 / HOST_LINK + 7 * LAUNCH) * 1e6)


def parts_of(seqs: int, ranks: int) -> dict[str, float]:
    """Of a decode step of Qwen3-8B, us."""
    return {row["part"]: row["us"] for row in predict(H200, [1024] * seqs, shape=LARGE, ranks=ranks)}


def test_two_gpus_read_half_of_the_head_and_add_73_sums():
    """One sequence, by hand: the head has 1.245 GB, at 0.9 * 4.3 TB/s. A sum of 8 KB takes 6 us and its link, and the
    gather brings half of 304 KB of logits to the rank that samples."""
    for ranks in (1, 2):
        read = 2 * 151_936 * 4096 / ranks / (0.9 * 4.3e12)
        assert parts_of(1, ranks)["head"] == pytest.approx(1e6 * (read + PRODUCT_LAUNCH), rel=0.01)
    sums = 73 * (6e-6 + 8192 / 450e9) + 6e-6 + 151_936 / 450e9
    assert parts_of(1, 2)["sums"] == pytest.approx(1e6 * sums)
    assert "sums" not in parts_of(1, 1)


def test_keys_are_shared_and_small_kernels_are_not():
    """256 sequences on four GPUs: two of the eight KV heads on each."""
    one, four = parts_of(256, 1), parts_of(256, 4)
    assert four["attention"] == pytest.approx(one["attention"] / 4, rel=0.05)
    assert four["small kernels"] > one["small kernels"] / 2
    assert four["sampling"] == one["sampling"]


def test_the_table_of_several_gpus_is_what_is_predicted_today() -> None:
    for row in json.loads((ROOT / "docs/benchmarks/data/time-line-ranks-h200.json").read_text())["rows"]:
        parts = parts_of(row["seqs"], row["gpus"])
        assert row["us"] == pytest.approx(sum(parts.values()))
        assert row["gain"] == pytest.approx(sum(parts_of(row["seqs"], 1).values()) / row["us"])
        assert row["sums"] == pytest.approx(parts.get("sums", 0.0))


def test_a_number_of_gpus_that_heads_cannot_be_shared_by_is_refused() -> None:
    args = build_parser().parse_args(["timeline", "--tensor-parallel-size", "3"])
    with pytest.raises(ValueError, match="tensor_parallel_size must divide the 32 heads of Qwen3-8B, got 3"):
        run(args)
