"""The attention kernels compile for a Hopper GPU, and as they were meant to; the interpreter could not tell.

What Triton makes of a kernel is read in its PTX, and how many registers that takes in the report of NVIDIA's assembler.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.m4.compiling import Kernels, compiled_by, compiled_once

pytest.importorskip("triton")
pytestmark = compiled_once  # ten kernels through a compiler: a quarter of a minute

SHARED_MEMORY = 227 << 10  # of an SM, for its programs
SYSTEM_SHARED = 1 << 10  # what the system takes of it for each
REGISTERS = 65536  # of an SM


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compiled_by("tests.m4.attention_aot", tmp_path_factory.mktemp("triton"), "few")


def check_everything(kernels: Kernels, spilled: int = 0, spilled_in_float32: int = 0) -> None:
    for name, kernel in kernels.items():
        most = spilled_in_float32 if "-fp32-" in name else spilled
        assert kernel["stack"] <= most, f"{name} spills {kernel['stack']} bytes of registers"
        assert kernel["shared"] + SYSTEM_SHARED <= SHARED_MEMORY, name
        assert kernel["registers"] * kernel["warps"] * 32 <= REGISTERS, name
        if name.startswith(("decode", "prefill")):
            assert kernel["waits"], f"{name} copies nothing ahead"
            assert min(kernel["waits"]) > 0, f"{name} waits for K and V that it has just asked for"


def test_k_and_v_come_while_tiles_before_them_are_multiplied_and_no_register_is_spilled(compiled: Kernels) -> None:
    check_everything(compiled)


def test_so_does_every_dtype_with_every_head_size_and_tile(tmp_path: Path) -> None:
    """Of some hundred, a few may spill two registers, or some more in float32: which ones depends on the compiler."""
    check_everything(compiled_by("tests.m4.attention_aot", tmp_path, "all"), spilled=8, spilled_in_float32=64)


def test_k_and_v_are_fetched_in_pieces_of_16_bytes(compiled: Kernels) -> None:
    """cp.async.cg comes in 16 bytes alone. The loop's body and what runs before it have some each for K and for V."""
    for name in ("decode-bf16-128-2-16-1", "decode-bf16-128-2-16-8", "decode-fp16-80-2-16-1",
                 "prefill-bf16-128-2-16-2000"):  # fmt: skip
        assert compiled[name]["cp.async.cg.shared.global"] >= 16, name


def test_three_programs_of_decode_share_an_sm(compiled: Kernels) -> None:
    """splits.py counts on it."""
    for name in ("decode-bf16-128-2-16-1", "decode-bf16-128-2-16-8"):
        assert 3 * (compiled[name]["shared"] + SYSTEM_SHARED) <= SHARED_MEMORY
        assert 3 * compiled[name]["registers"] * compiled[name]["warps"] * 32 <= REGISTERS


def test_matrix_units_multiply_16_bits_and_float32_stays_exact(compiled: Kernels) -> None:
    assert compiled["prefill-bf16-128-2-16-2000"]["wgmma.mma_async"] > 0
    assert compiled["prefill-bf16-256-2-16-2000"]["wgmma.mma_async"] > 0
    assert compiled["decode-bf16-128-2-16-1"]["mma.sync"] > 0
    for name in ("decode-fp32-128-2-16-8", "prefill-fp32-64-2-16-2000"):
        assert compiled[name]["mma.sync"] == compiled[name]["wgmma.mma_async"] == 0, name


def test_a_decode_waits_for_the_kernel_before_it_ahead_of_all_else(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        assert kernel["early"] == ([] if name.startswith(("decode", "fused")) else None), name
