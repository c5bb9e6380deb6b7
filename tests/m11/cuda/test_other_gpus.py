"""What an engine does on a GPU that is older or newer than Hopper's, and beside one that torch does not find."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLM, ModelConfig, SamplingParams
from folovllm.layers.linear import Linear
from folovllm.layers.quantization.cuda import FEW_ROWS, Fp8Linear, PlainFp8Linear
from folovllm.model_loader import resolve_device
from folovllm.model_loader.quant_scheme import ONLINE
from folovllm.utils import devices
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder, our_warnings
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import make_engine, serve, serve_on_cpu

CPU = torch.device("cpu")


@pytest.mark.exhaustive
def test_a_t4_has_our_kernels_for_decodes_and_torch_for_prompts(fake_cuda: FakeCuda, small_oracle: Oracle) -> None:
    fake_cuda.capability = (7, 5)
    engine = make_engine(small_oracle, max_num_batched_tokens=8, enable_chunked_prefill=True)
    assert engine.runner.kv_cache.backend.name == "turing"
    fake_cuda.reset_counts()
    greedy = SamplingParams(temperature=0, max_tokens=6)
    requests = [(prompt, greedy) for prompt in ([5], [3, 4, 5, 9, 8, 7, 6, 5, 4, 3, 2], [7, 1, 2])]
    said = serve(engine, requests)
    assert fake_cuda.launches["_paged_decode"] > 0  # of steps with prompts; others are graphs
    assert fake_cuda.launches["graph"] > 0
    assert fake_cuda.launches["_paged_prefill"] == 0
    assert fake_cuda.compiled == []
    assert said == serve_on_cpu(small_oracle, requests)


def test_on_a_t4_auto_is_float16_which_a_line_says(
    fake_cuda: FakeCuda, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_hf_folder(tmp_path, "qwen3", dtype=torch.bfloat16, max_position_embeddings=32)
    options: dict[str, Any] = {"skip_tokenizer_init": True, "device": "cuda", "num_kv_blocks": 8, "max_num_seqs": 2}
    fake_cuda.capability = (7, 5)
    engine = LLM(str(folder), **options).engine
    assert {weight.dtype for weight in engine.runner.model.parameters()} == {torch.float16}
    assert our_warnings(caplog) == ["dtype='auto' is float16: cuda:0 multiplies no bfloat16"]


@pytest.mark.exhaustive
def test_fp8_is_right_where_torch_scales_whole_matrices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = torch._scaled_mm

    def as_on_12_0(a: torch.Tensor, b: torch.Tensor, *, scale_a: torch.Tensor, **more: Any) -> torch.Tensor:
        if scale_a.numel() > 1:
            raise RuntimeError("scaled_gemm with row-wise scales is not supported on this device")
        return multiply(a, b, scale_a=scale_a, **more)

    monkeypatch.setattr(torch, "_scaled_mm", as_on_12_0)
    weight, x = torch.randn(32, 64), torch.randn(FEW_ROWS + 1, 64)
    found = []
    for method in (Fp8Linear, PlainFp8Linear):
        layer = Linear(64, 32, method=method(ONLINE["fp8"], "layer"))
        layer.weight.data = weight.clone()
        layer.method.process_weights_after_loading(layer)
        found.append(layer(x))
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)  # rounded to bfloat16


def hide_the_gpu(monkeypatch: pytest.MonkeyPatch, driver: Path, cuda: str | None) -> None:
    """As a driver does that is too old."""

    def is_available() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old.\nPlease update", stacklevel=1)
        return False

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.parametrize(
    ("cuda", "why"),
    [("13.0", "it may be too old for CUDA 13.0"), (None, "this build of torch has no CUDA")],
)
def test_a_gpu_that_torch_does_not_find_is_said_in_one_line(
    cuda: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:  # fmt: skip
    (driver := tmp_path / "nvidiactl").touch()
    hide_the_gpu(monkeypatch, driver, cuda)
    assert resolve_device(ModelConfig("m")) == CPU
    (said,) = our_warnings(caplog)
    assert said.startswith(
        f"the CPU computes: torch {torch.__version__} finds no GPU, though NVIDIA's driver runs: {why}"
    )
    assert not recwarn.list
    with pytest.raises(ValueError, match=f"^device must exist, got 'cuda' .* 0 CUDA devices: .*{why}.*device='cpu'"):
        resolve_device(ModelConfig("m", device="cuda"))


@pytest.mark.parametrize(("there", "visible"), [(False, None), (True, "")])
def test_nothing_is_said_where_there_is_no_gpu_or_none_is_wanted(
    there: bool, visible: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = tmp_path / "nvidiactl"
    if there:
        driver.touch()
    hide_the_gpu(monkeypatch, driver, "13.0")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resolve_device(ModelConfig("m")) == CPU
    assert our_warnings(caplog) == []
