"""What small cases on a CPU do not show: which tiles a GPU gets, and addresses that no int32 holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from folovllm.attention.backends.triton import kernels_unavailable_reason
from tests.fake_cuda import FakeCuda
from tests.m4.attention_reference import KERNEL_DEVICE, TOLERANCE, reference

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.kernels import paged_decode, paged_prefill, tile
from folovllm.layers.kernels import norm_rotary
from folovllm.utils.gpus import Gpu, gpu_of

# Tiles.

LARGE, SMALL = {(9, 0), (10, 0), (10, 3)}, {(8, 0), (8, 6), (8, 9), (12, 0)}


def test_hopper_and_data_centre_blackwell_have_the_large_tiles() -> None:
    for capability in LARGE | SMALL:
        assert Gpu("nvidia", capability).has_small_tiles == (capability in SMALL), capability


@pytest.mark.parametrize("capability", [(9, 0), (9, 4)])  # gfx90a, gfx942
def test_an_amd_gpu_is_not_taken_for_a_hopper(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    gpu = gpu_of.__wrapped__(torch.device("cuda"))
    assert gpu == Gpu("amd", capability)
    assert gpu.has_small_tiles
    assert not gpu.is_nvidia(9)
    assert gpu.stages(tile.STAGES) == 2


def launched_tiles(fake_cuda: FakeCuda) -> list[dict[str, object]]:
    """BLOCK_M and BLOCK_N of decode and prefill in bfloat16 with heads of 128, on the stand-in for an H100."""
    cache = torch.zeros(2, 3, 16, 1, 128, dtype=torch.bfloat16, device="cuda")
    q = torch.zeros(2, 2, 128, dtype=torch.bfloat16, device="cuda")
    tables, lens = torch.ones(2, 1, dtype=torch.int32, device="cuda"), torch.ones(2, dtype=torch.int32, device="cuda")
    starts = torch.arange(3, dtype=torch.int32, device="cuda")
    paged_decode.paged_decode(q, *cache.unbind(0), tables, lens, 1.0)
    paged_prefill.paged_prefill(q, *cache.unbind(0), tables, starts, lens, 200, 1.0)
    found = []
    for kernel in (paged_decode._paged_decode, paged_prefill._paged_prefill):
        (variant,) = fake_cuda.variants[kernel.fn.__name__]
        constants = dict(zip(["device", *kernel.arg_names], variant, strict=False))
        found.append({name: constants[name] for name in ("BLOCK_M", "BLOCK_N") if name in constants})
    return found


def test_the_stand_in_for_an_h100_launches_tiles_of_64_tokens(fake_cuda: FakeCuda) -> None:
    assert launched_tiles(fake_cuda) == [{"BLOCK_N": 64}, {"BLOCK_M": 128, "BLOCK_N": 64}]


# Addresses. The cache has more than 2^31 numbers, 4 GiB of which a few pages are touched, and serves as K and V.

BLOCK_SIZE, HEAD_SIZE = 64, 32
FAR = (1 << 31) // (BLOCK_SIZE * HEAD_SIZE)  # the first block that begins beyond an int32


@pytest.fixture(scope="module")
def cache() -> torch.Tensor:
    return torch.empty(FAR + 2, BLOCK_SIZE, 1, HEAD_SIZE, dtype=torch.float16, device=KERNEL_DEVICE)


@pytest.fixture
def overflows_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kernels are interpreted, which else goes on with the address that comes out, and ends the process."""
    from triton.runtime.interpreter import interpreter_builder

    monkeypatch.setattr(interpreter_builder, "options", replace(interpreter_builder.options, debug=True))


def write_and_read(cache: torch.Tensor) -> None:
    """A sequence of 70 tokens in the last blocks, written, and read by its last token and by its last three."""
    length, scale = 70, HEAD_SIZE**-0.5
    k = torch.randn(length, 1, HEAD_SIZE, device=KERNEL_DEVICE).half()
    q = torch.randn(3, 2, HEAD_SIZE, device=KERNEL_DEVICE).half()
    slots = torch.arange(length, device=KERNEL_DEVICE) + FAR * BLOCK_SIZE
    angles = torch.ones(length, HEAD_SIZE, device=KERNEL_DEVICE), torch.zeros(length, HEAD_SIZE, device=KERNEL_DEVICE)
    fused = torch.cat([torch.zeros_like(k), k, k], 1)
    norm_rotary.norm_rotary(fused, None, angles, 1, 1, cache[None].expand(2, -1, -1, -1, -1), slots)
    assert torch.equal(cache[FAR:].flatten(0, 1)[:length], k)
    tables = torch.tensor([[FAR, FAR + 1]], dtype=torch.int32, device=KERNEL_DEVICE)
    lens, starts = (torch.tensor(each, dtype=torch.int32, device=KERNEL_DEVICE) for each in ([length], [0, 3]))
    want, tolerance = reference(q, k, k, scale), TOLERANCE[torch.float16]
    out = paged_decode.paged_decode(q[2:], cache, cache, tables, lens, scale)
    torch.testing.assert_close(out.double(), want[2:], atol=tolerance, rtol=0)
    out = paged_prefill.paged_prefill(q, cache, cache, tables, starts, lens, 3, scale)
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=0)


@pytest.mark.usefixtures("overflows_raise")
def test_slots_and_blocks_beyond_int32_are_written_and_read(cache: torch.Tensor) -> None:
    write_and_read(cache)
