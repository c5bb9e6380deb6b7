"""The loop of the batch-invariant product as it is compiled for a GPU, run by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backends.triton import kernels_unavailable_reason
from tests.m4.attention_reference import KERNEL_DEVICE
from tests.m4.compiling import as_compiled

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.layers.kernels import matmul

pytestmark = pytest.mark.skipif(KERNEL_DEVICE.type == "cuda", reason="here it is compiled anyway")


def test_the_product_adds_up_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 columns are six tiles of 32, and a part of one."""
    as_compiled(monkeypatch, matmul)
    x, weight = torch.randn(5, 200), torch.randn(33, 200)
    torch.testing.assert_close(matmul.linear(x, weight), x @ weight.T, atol=1e-4, rtol=0)
