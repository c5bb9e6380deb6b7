"""The KV cache in int8 on a GPU: codes as torch makes them, attention as defined, an engine that says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm.attention.backends.int8 import PagedInt8Backend, codes_of, scales_of
from tests.gpu.places import Place, on_every_place
from tests.gpu.test_fp8_gpu import check_engine
from tests.m4.cpu_target import relative_error
from tests.m7.test_int8_cache import Batch

pytest.importorskip("triton")


@on_every_place
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stored_codes_and_scales_are_torchs(dtype: torch.dtype, place: Place) -> None:
    from folovllm.attention.backends.int8 import TritonInt8Backend

    x = (torch.randn(512 if place.full else 9, 8, 128) * 10).to(dtype)
    x[1, 2] = 0
    caches = []
    for backend, device in ((PagedInt8Backend, "cpu"), (TritonInt8Backend, place.device)):
        one = backend(8, 8, 128, 1.0)
        kv_cache = torch.zeros(one.kv_cache_shape(-(-len(x) // 16), 16), dtype=torch.int8, device=device)
        one.write(x.to(device), -x.to(device), kv_cache, torch.arange(len(x), device=device))
        caches.append(kv_cache.cpu())
    assert torch.equal(codes_of(caches[0]), codes_of(caches[1]))
    assert torch.equal(scales_of(caches[0]), scales_of(caches[1]))


@on_every_place
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_attention_reads_what_the_codes_mean(head_size: int, dtype: torch.dtype, allowed: float, place: Place) -> None:
    from folovllm.attention.backends.int8 import TritonInt8Backend, TritonInvariantInt8Backend

    lens, new = ([700, 33, 1, 200], [1, 1, 1, 100]) if place.full else ([20, 5, 1, 9], [1, 1, 1, 4])
    heads, kv_heads = (16, 8) if place.full else (2, 1)
    batch = Batch(dtype, lens, new, heads, kv_heads, head_size, 16)
    want = batch.exact()
    batch.move(place.device)
    for backend in (TritonInt8Backend, TritonInvariantInt8Backend):
        assert relative_error(batch.attend(backend).cpu(), want) < allowed


@on_every_place
def test_an_engine_says_what_it_says_on_a_cpu(tmp_path: Path, place: Place) -> None:
    check_engine(tmp_path, place, kv_cache_dtype="int8")
