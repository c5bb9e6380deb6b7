"""The attention kernels' loops as they are compiled for a GPU, run by Triton's interpreter; and what that finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm.attention.backends.triton import TritonBackend, kernels_unavailable_reason
from tests.m4.attention_reference import KERNEL_DEVICE, Shape, make_case
from tests.m4.planted import as_compiled, planted

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.kernels import paged_decode, paged_prefill, tile
from tests.m4.test_kernels_attention import close, decode, written

pytestmark = pytest.mark.skipif(KERNEL_DEVICE.type == "cuda", reason="here they are compiled anyway")
SMALL = Shape(4, 2, 32, 16, torch.float32)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    as_compiled(monkeypatch, paged_decode, paged_prefill)


def decodes(num_splits: int) -> None:
    """Of tiles of 64 tokens the three sequences have 1, 2 and 4."""
    case = written([(1, 0), (1, 64), (1, 199)], SMALL)
    close(decode(case, num_splits), case.want)


def prefills() -> None:
    make_case(TritonBackend, [(9, 0), (40, 100)], SMALL).check()


@pytest.mark.parametrize("num_splits", [1, 2, 5])
def test_decode_reads_every_tile_of_its_split_and_no_other(num_splits: int) -> None:
    decodes(num_splits)


def test_prefill_reads_every_tile_up_to_its_last_query() -> None:
    prefills()


@pytest.mark.parametrize(
    ("wrong", "find"),
    [
        ("range(0, end, BLOCK_N)", lambda: decodes(2)),
        ("range(start, end - BLOCK_N, BLOCK_N)", lambda: decodes(1)),
        ("range(start, end - BLOCK_N, BLOCK_N)", prefills),
    ],
    ids=["each split from the first token on", "decode without its last tile", "prefill without its last tile"],
)
def test_a_loop_that_is_wrong_when_compiled_is_found(wrong, find, tmp_path: Path, monkeypatch) -> None:
    copy = planted(tile, "range(start, end, BLOCK_N)", wrong, tmp_path)
    for module in (paged_decode, paged_prefill):
        monkeypatch.setattr(module, "attend_keys", copy.attend_keys)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        find()
