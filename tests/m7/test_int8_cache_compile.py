"""The kernels that read the KV cache in int8 compile for a Hopper GPU as those for fp8 do: nothing is spilled, and
codes and scales are on their way while the tiles before them are multiplied."""

from __future__ import annotations

import pytest

from tests.m4.compiling import Kernels, compiled_by, compiled_once

pytest.importorskip("triton")
pytestmark = compiled_once  # some kernels through a compiler


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compiled_by("tests.m7.int8_cache_aot", tmp_path_factory.mktemp("triton"))


def test_no_register_is_spilled_and_an_sm_has_room(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        assert kernel["stack"] == 0, f"{name} spills {kernel['stack']} bytes of registers"
        assert kernel["registers"] * kernel["warps"] * 32 <= 65536, name
        assert kernel["shared"] < 227 << 10, name


def test_codes_and_scales_come_while_tiles_before_them_are_multiplied(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        if name.startswith(("decode", "prefill")):
            assert kernel["waits"], f"{name} copies nothing ahead"
            assert min(kernel["waits"]) > 0, f"{name} waits for K and V that it has just asked for"
            if "-fp32-" not in name:
                assert kernel["cp.async.cg.shared.global"] >= 4, f"{name} copies less than 16 bytes at a time"


def test_as_many_programs_of_decode_in_splits_share_an_sm_as_in_16_bits(compiled: Kernels) -> None:
    kernel = compiled["decode-bf16-128-8"]
    assert 3 * kernel["registers"] * kernel["warps"] * 32 <= 65536
    assert 3 * kernel["shared"] < 227 << 10
