"""What commands say of a GPU's kernels, on the stand-in."""

from __future__ import annotations

import pytest

from folovllm import LLMEngine
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.entrypoints.cli.info import collect
from tests.fake_cuda import FakeCuda
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import SETTINGS
from tests.m11.cuda.test_few_rows import in_float32
from workshop.bench.ablate import FEATURES

__all__ = ["in_float32"]


@pytest.mark.usefixtures("in_float32")
def test_it_can_be_left_out_to_see_what_it_is_worth(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    options = {**SETTINGS, "skip_tokenizer_init": True, "enforce_eager": True}
    config = config_for_llm(str(small_oracle.folder), dtype="float32", device="cuda", **options)
    engine = LLMEngine(config, **FEATURES["few-rows"].options)
    assert engine.runner.model.model.ops.most_rows == 0
    assert fake_cuda.variants["_few_rows_kernel"] == {}


@pytest.mark.parametrize(
    ("capability", "backend", "layers"), [((7, 5), "turing", None), ((7, 0), "paged_torch", "7.5")]
)
def test_what_runs_there_is_said(
    fake_cuda: FakeCuda, capability: tuple[int, int], backend: str, layers: str | None
) -> None:
    fake_cuda.capability = capability
    data = collect()
    assert data["attention_backend"] == backend
    assert "8.0" in data["attention_backends"]["triton"]
    reason = data["layers"]["triton"]
    assert reason is None if layers is None else layers in reason
