"""The fixtures of M4's tests of CUDA, with graphs for steps with prompts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.fake_cuda import FakeCuda, fake_cuda_machine
from tests.m4.conftest import patch_once_a_launch, small_oracle

__all__ = ["patch_once_a_launch", "small_oracle"]


@pytest.fixture
def fake_cuda() -> Iterator[FakeCuda]:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: tests/gpu runs there, and kernels are compiled instead of interpreted")
    with fake_cuda_machine(total_bytes=2 << 30, prompt_graphs=True) as machine:
        yield machine
