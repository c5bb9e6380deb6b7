"""The products of a layer, by our kernel and by torch."""

from __future__ import annotations

import json

import pytest
import torch

from folovllm.layers.compiled_ops import compiled_unavailable_reason
from workshop import product_bench


def test_the_shapes_are_those_of_the_fused_layer():
    assert product_bench.weight_shapes("qwen3-0.6b") == [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]


def measured(options, tmp_path):
    product_bench.main(
        [
            "--dtype",
            "float32",
            "--rows",
            "1",
            "3",
            "--shape",
            "qwen3-mini",
            *options,
            "--json",
            str(tmp_path / "a.json"),
        ]
    )
    return json.loads((tmp_path / "a.json").read_text())


def test_both_ways_are_timed_and_the_first_is_the_one_that_is_picked(tmp_path):
    found = measured([], tmp_path)
    compiled = compiled_unavailable_reason(torch.float32) is None
    assert found["columns"] == (
        ["rows", "compiled_ms", "torch_ms", "torch_per_compiled"] if compiled else ["rows", "torch_ms"]
    )
    assert [row["rows"] for row in found["rows"]] == [1, 3]


@pytest.mark.skipif(compiled_unavailable_reason(torch.float32) is not None, reason="the kernels cannot run here")
def test_products_with_codes_take_the_place_of_torchs(tmp_path):
    found = measured(["--quantization", "w4a16", "w8a8", "--threads", "1"], tmp_path)
    assert found["columns"] == ["rows", "compiled_ms", "w4a16_ms", "w8a8_ms", "w4a16_per_compiled", "w8a8_per_compiled"]


def test_no_rows_are_refused(capsys):
    with pytest.raises(SystemExit):
        product_bench.main(["--rows", "0"])
    assert "must be positive, got 0" in capsys.readouterr().err
