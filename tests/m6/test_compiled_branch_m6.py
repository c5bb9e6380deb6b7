"""The loop of the batch-invariant product as it is compiled for a GPU, run by Triton's interpreter."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from folovllm.attention.backends.triton import kernels_unavailable_reason
from tests.m4.attention_reference import KERNEL_DEVICE
from tests.m4.planted import as_compiled, planted

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.layers.kernels import matmul

pytestmark = pytest.mark.skipif(KERNEL_DEVICE.type == "cuda", reason="here it is compiled anyway")


def multiply(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 columns are six tiles of 32, and a part of one."""
    as_compiled(monkeypatch, module)
    x, weight = torch.randn(5, 200), torch.randn(33, 200)
    torch.testing.assert_close(module.linear(x, weight), x @ weight.T, atol=1e-4, rtol=0)


def test_the_product_adds_up_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply(matmul, monkeypatch)


@pytest.mark.parametrize("wrong", ["range(BLOCK_K, in_features, BLOCK_K)", "range(0, in_features - BLOCK_K, BLOCK_K)"])
def test_a_tile_that_is_left_out_when_compiled_is_found(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = planted(matmul, "range(0, in_features, BLOCK_K)", wrong, tmp_path)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        multiply(copy, monkeypatch)
