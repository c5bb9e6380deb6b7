"""`folovllm bench attention`: what it counts, and what it does with backends that cannot take a case."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from folovllm.attention.backend import get_backend_class
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.bench.report import Report
from workshop.bench import attention

CPU = torch.device("cpu")


def bench(**kwargs: Any) -> Report:
    sizes: dict[str, Any] = {"batch_sizes": [2], "contexts": [20], "dtypes": ["float32"], "rounds": 1}
    return attention.run(command="test", shape="qwen3-tiny", device="cpu", **{**sizes, **kwargs})


def test_what_one_layer_moves_and_computes() -> None:
    decode = attention.Work("bfloat16", 3, 10, "scattered", False, heads=16, kv_heads=8, head_size=128)
    assert decode.num_bytes == 3 * 10 * 4096
    assert decode.flops == 3 * 10 * 8192
    prefill = attention.Work("bfloat16", 1, 4, "scattered", True, heads=1, kv_heads=1, head_size=16)
    assert prefill.flops == 4 * 16 * (1 + 2 + 3 + 4)


def test_decode_says_gb_per_s_beside_reading_and_copying() -> None:
    report = bench(backend="paged_torch")
    assert [row["blocks"] for row in report.rows] == ["consecutive", "scattered"]
    for row in report.rows:
        assert row["backend"] == "paged_torch"
        assert min(row["paged_gb_per_s"], row["memory_gb_per_s"], row["copy_gb_per_s"], row["ratio"]) > 0


def test_prefill_says_tflop_per_s_beside_a_matmul() -> None:
    report = bench(backend="paged_torch", prefill=True, dtypes=["float32", "bfloat16"])
    assert [row["dtype"] for row in report.rows] == ["float32"] * 2 + ["bfloat16"] * 2
    assert all(row["paged_tflop_per_s"] > 0 and row["matmul_tflop_per_s"] > 0 for row in report.rows)


def test_all_are_the_paged_ones_that_can_run_and_are_no_interpreter() -> None:
    names = [backend.name for backend in attention.paged_backends("all", CPU)]
    assert "paged_torch" in names
    assert not {"dense", "triton", "flash_attn"} & set(names)


def test_all_leaves_out_what_refuses_a_case_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "paged_backends", lambda *_: [Picky, PagedTorchBackend])
    report = bench(backend="all")
    assert {row["backend"] for row in report.rows} == {"paged_torch"}
    assert "Not measured: block_size must be a prime" in report.notes


def test_a_named_backend_that_refuses_a_case_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "paged_backends", lambda *_: [Picky])
    with pytest.raises(ValueError, match="block_size must be a prime"):
        bench(backend="picky")


def test_both_readers_see_the_same_numbers() -> None:
    work = attention.Work("float32", 3, 20, "scattered", False, heads=4, kv_heads=2, head_size=16)
    (dense, paged), q = attention.make_readers([get_backend_class("paged_torch")], work, 16, CPU)
    outs = [reader.backend.forward(q, reader.caches[0], reader.make_metadata()) for reader in (dense, paged)]
    torch.testing.assert_close(*outs)


class Picky(PagedTorchBackend):
    name = "picky"

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        raise ValueError("block_size must be a prime")
