"""The products of a layer, by our kernel and by torch."""

from __future__ import annotations

import json

import pytest
import torch

from folovllm.layers.compiled_ops import compiled_unavailable_reason
from workshop import product_bench


def test_the_shapes_are_those_of_the_fused_layer():
    assert product_bench.weight_shapes("qwen3-0.6b") == [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]


def test_both_ways_are_timed_and_products_with_codes_take_the_place_of_torchs(tmp_path):
    def columns(*options):
        sizes = ["--dtype", "float32", "--rows", "1", "3", "--shape", "qwen3-mini"]
        product_bench.main([*sizes, *options, "--json", str(tmp_path / "a.json")])
        found = json.loads((tmp_path / "a.json").read_text())
        assert [row["rows"] for row in found["rows"]] == [1, 3]
        return found["columns"]

    if compiled_unavailable_reason(torch.float32) is not None:
        assert columns() == ["rows", "torch_ms"]
        return
    assert columns() == ["rows", "compiled_ms", "torch_ms", "torch_per_compiled"]
    codes = columns("--quantization", "w4a16", "w8a8", "--threads", "1")
    assert codes == ["rows", "compiled_ms", "w4a16_ms", "w8a8_ms", "w4a16_per_compiled", "w8a8_per_compiled"]


def test_no_rows_are_refused(capsys):
    with pytest.raises(SystemExit):
        product_bench.main(["--rows", "0"])
    assert "must be positive, got 0" in capsys.readouterr().err
