"""The products of a layer, by our kernel and by torch."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers.compiled_ops import compiled_unavailable_reason
from workshop import product_bench


def test_the_shapes_are_those_of_the_fused_layer():
    assert product_bench.weight_shapes("qwen3-0.6b") == [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]


def test_both_ways_are_timed_and_the_first_is_the_one_that_is_picked(capsys):
    product_bench.main(["--dtype", "float32", "--rows", "1", "3", "--shape", "qwen3-mini"])
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if "rows" in line)
    assert ("compiled" in header) == (compiled_unavailable_reason(torch.float32) is None)
    assert header.find("compiled") < header.index("torch")
    assert [line.split("│")[1].strip() for line in lines if line.startswith("│")] == ["1", "3"]


def test_no_rows_are_refused(capsys):
    with pytest.raises(SystemExit):
        product_bench.main(["--rows", "0"])
    assert "must be positive, got 0" in capsys.readouterr().err
