"""Benchmarks of quantised models: what is asked for, what the table says, and which bytes count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from folovllm import LLM
from folovllm.bench.roofline import ModelCost
from folovllm.bench.shapes import ModelShape
from folovllm.layers.compiled_ops import compiled_unavailable_reason
from tests.bench.support import bench, run
from tests.helpers import make_hf_folder
from workshop import quantized_shape

SHORT = ["--num-requests", "2", "--input-len", "4", "--output-len", "3", "--rounds", "1"]
COMPILED = pytest.mark.skipif(
    compiled_unavailable_reason(torch.float32) is not None, reason="the compiled kernels cannot run here"
)


@pytest.mark.slow
def test_the_table_says_what_became_of_the_weights(tmp_path: Path) -> None:
    command = ["throughput", "--shape", "qwen3-tiny", *SHORT, "--quantization", "w4a8", "--quantize-head"]
    (row,) = bench(command, tmp_path / "one.json")
    assert row["dtype"] == "w4a8, head in 8 bits"


@pytest.mark.slow
def test_a_folder_that_is_quantised_is_measured_with_random_weights(tmp_path: Path) -> None:
    quantized_shape.main(["--shape", "qwen3-tiny", "w8a8", str(tmp_path / "model")])
    command = ["throughput", "--model", str(tmp_path / "model"), "--load-format", "dummy", *SHORT]
    (row,) = bench(command, tmp_path / "one.json")
    assert row["seconds"] > 0


def test_a_quantization_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["throughput", "--quantization", "w3a16"])
    assert "'w3a16'" in capsys.readouterr().err


@COMPILED
def test_a_step_reads_codes_and_their_scales(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    plain = LLM(folder, dtype="float32", device="cpu", skip_tokenizer_init=True).engine
    rounded = LLM(folder, dtype="float32", device="cpu", skip_tokenizer_init=True, quantization="w4a16").engine
    layers = [layer.mlp.down_proj.weight.nbytes for layer in rounded.runner.model.model.layers]
    assert 0 < layers[0] < 4 * plain.runner.model.model.layers[0].mlp.down_proj.weight.numel()
    of_plain, of_rounded = ModelCost.of_engine(plain), ModelCost.of_engine(rounded)
    assert of_rounded.weight_bytes < of_plain.weight_bytes
    assert of_rounded.body_flops == of_plain.body_flops


def test_bytes_of_a_quantised_folder_are_not_guessed(tmp_path: Path) -> None:
    quantized_shape.write("qwen3-tiny", "w4a16", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]["format"] == "pack-quantized"
    with pytest.raises(ValueError, match="quantization_config"):
        ModelShape.of(str(tmp_path))
    assert ModelShape.of(str(tmp_path), quantized=True).layers == 2
