"""M6's kernels compile for a Hopper GPU as they were meant to: nothing is spilled, and both of a product's operands are
on their way while the tiles before them are multiplied. What Triton made is read in its PTX and NVIDIA's report."""

from __future__ import annotations

import pytest

from tests.m4.compiling import Kernels, compiled_by, compiled_once

pytest.importorskip("triton")
pytestmark = compiled_once  # two dozen kernels through a compiler: half a minute


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compiled_by("tests.m6.aot", tmp_path_factory.mktemp("triton"))


# Bytes of a thread's registers, of prompts in float32 with heads of 256. No tile that was tried needs fewer.
FEW_SPILLED = 64
FEW_SPILLED_BY_DECODE = 8  # in float32


def test_no_register_is_spilled_and_an_sm_has_room(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        allowed = FEW_SPILLED if name.startswith("prefill-fp32-256-") else 0
        allowed = FEW_SPILLED_BY_DECODE if name.startswith("decode-fp32-") else allowed
        assert kernel["stack"] <= allowed, f"{name} spills {kernel['stack']} bytes of registers"
        assert kernel["registers"] * kernel["warps"] * 32 <= 65536, name
        assert kernel["shared"] < 227 << 10, name


def test_keys_and_values_of_8_bits_come_while_tiles_before_them_are_multiplied(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        if name == "prefill-fp32-16-2000":  # a thread has less than the 4 bytes that the copy unit takes
            assert kernel["waits"] == []
        elif name.startswith(("decode", "prefill")):
            assert kernel["waits"], f"{name} copies nothing ahead"
            assert min(kernel["waits"]) > 0, f"{name} waits for K and V that it has just asked for"
            if "-fp32-" not in name:  # 16 bytes a thread; tiles for float32 have fewer for each
                assert kernel["cp.async.cg.shared.global"] >= 4, name


def test_three_programs_of_decode_share_an_sm_as_in_16_bits(compiled: Kernels) -> None:
    """splits.py counts on it. Their tiles take little more than half of the 71 KB that they take in bfloat16."""
    for splits in (1, 8):
        kernel = compiled[f"decode-bf16-128-{splits}"]
        assert 3 * kernel["registers"] * kernel["warps"] * 32 <= 65536
        assert kernel["shared"] < 40 << 10


def test_float32_over_8_bits_is_multiplied_by_the_matrix_units(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        if name.startswith(("decode-fp32", "prefill-fp32")):
            assert kernel["mma.sync"] > 0, name


def test_the_invariant_product_has_two_stages_under_way(compiled: Kernels) -> None:
    for name in ("linear-bf16-0-0", "linear-bf16-0-1", "linear-fp32-0-0", "linear-fp32-0-1"):
        assert compiled[name]["waits"], f"{name} copies nothing ahead"
        assert min(compiled[name]["waits"]) >= 2, f"{name}: x and weight of the next step are one group each"
        tensor_units = compiled[name]["wgmma.mma_async"] + compiled[name]["mma.sync"]
        assert (tensor_units > 0) == name.startswith("linear-bf16"), name
