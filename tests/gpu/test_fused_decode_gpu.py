"""paged_decode that also turns and stores, at a model's sizes on a CUDA device."""

from __future__ import annotations

import pytest

from folovllm.attention.backend import NO_EXTRAS
from tests.gpu.test_attention_gpu import LARGE, LARGE_BATCHES
from tests.m4.attention_reference import Shape

pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device


@pytest.mark.parametrize("batch", ["256 ragged decodes", "one long decode"])
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_it_is_norm_rotation_store_and_attention(shape: Shape, batch: str) -> None:
    from tests.m11.cuda.test_fused_decode import check

    check(shape, [old for _, old in LARGE_BATCHES[batch]], True, NO_EXTRAS, None)
