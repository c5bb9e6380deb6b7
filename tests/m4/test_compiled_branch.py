"""The attention kernels' loops as they are compiled for a GPU, run by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backends.triton import TritonBackend, kernels_unavailable_reason
from tests.m4.attention_reference import KERNEL_DEVICE, Shape, make_case
from tests.m4.compiling import as_compiled

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.kernels import paged_decode, paged_prefill
from tests.m4.test_kernels_attention import close, decode, written

pytestmark = pytest.mark.skipif(KERNEL_DEVICE.type == "cuda", reason="here they are compiled anyway")
SMALL = Shape(4, 2, 32, 16, torch.float32)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    as_compiled(monkeypatch, paged_decode, paged_prefill)


@pytest.mark.parametrize("num_splits", [1, 2, 5])
def test_decode_reads_every_tile_of_its_split_and_no_other(num_splits: int) -> None:
    """Of tiles of 64 tokens the three sequences have 1, 2 and 4."""
    case = written([(1, 0), (1, 64), (1, 199)], SMALL)
    close(decode(case, num_splits), case.want)


def test_prefill_reads_every_tile_up_to_its_last_query() -> None:
    make_case(TritonBackend, [(9, 0), (40, 100)], SMALL).check()
