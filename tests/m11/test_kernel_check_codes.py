"""An engine with quantised weights that starts on a GPU finds the product that is no good there, and does without."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, LLMEngine
from folovllm.engine.builder import kernel_cases
from folovllm.layers.quantization.cuda import Fp8Linear, PlainFp8Linear, TritonCodesLinear
from folovllm.layers.quantization.linear import QuantizedLinear
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder, our_warnings
from tests.m11.test_kernel_check import Doubled, Raises

pytest.importorskip("triton")
from folovllm.layers.quantization.kernels import linear_codes, round_rows

pytestmark = pytest.mark.slow


@pytest.fixture
def checked_cuda(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> FakeCuda:
    monkeypatch.setenv("FOLOVLLM_CHECK_KERNELS", "yes")
    monkeypatch.setattr(logging.getLogger("folovllm"), "propagate", True)  # to caplog
    caplog.set_level(logging.WARNING)
    # No weight has a part in these, and test_kernel_check.py has them; most of the interpreter's time would be theirs.
    products, attention = kernel_cases._product_cases, kernel_cases._attention_cases
    monkeypatch.setattr(kernel_cases, "_attention_cases", lambda *args: ({}, attention(*args)[1]))
    monkeypatch.setattr(kernel_cases, "_head_cases", lambda *args: {})
    monkeypatch.setattr(kernel_cases, "_product_cases", lambda *args: {"linear": products(*args)["linear"]})
    return fake_cuda


def engine(folder: Path, quantization: str) -> LLMEngine:
    """In float32 fp8 rounds no input."""
    settings: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": 8, "num_kv_blocks": 4, "max_num_batched_tokens": 8}
    return LLM(
        make_hf_folder(folder, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1),
        skip_tokenizer_init=True, dtype="float16" if quantization == "fp8" else "float32", device="cuda",
        quantization=quantization, **settings,
    ).engine  # fmt: skip


def product(engine: LLMEngine) -> type:
    return type(engine.runner.model.model.layers[0].mlp.down_proj.method)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("quantization", "kept"), [("w4a16", TritonCodesLinear), ("fp8", Fp8Linear)])
def test_a_product_that_is_right_is_kept(
    tmp_path: Path, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, quantization: str, kept: type
) -> None:
    assert product(engine(tmp_path, quantization)) is kept
    assert our_warnings(caplog) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("quantization", "module", "kernel", "result", "instead"),
    [
        ("w4a16", linear_codes, "_linear_codes_kernel", "out_ptr", QuantizedLinear),
        ("w4a16", linear_codes, "_linear_codes_kernel", None, QuantizedLinear),
        ("w8a8", round_rows, "_round_rows_kernel", "scale_ptr", QuantizedLinear),
        ("fp8", round_rows, "_round_rows_kernel", "scale_ptr", PlainFp8Linear),
    ],
)
def test_a_product_that_is_no_good_here_is_replaced_by_torchs(
    tmp_path: Path, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    quantization: str, module: Any, kernel: str, result: str | None, instead: type,
) -> None:  # fmt: skip
    fault = Raises() if result is None else Doubled(getattr(module, kernel), result)
    monkeypatch.setattr(module, kernel, fault)
    made = engine(tmp_path, quantization)
    (message,) = our_warnings(caplog)
    bits = 16 if quantization == "fp8" else 32
    assert f"which is slower, and quantised weights take {bits} bits: the kernel 'linear' " in message
    assert ("fails with RuntimeError: PTX assembler" if result is None else "is off by") in message
    assert product(made) is instead
