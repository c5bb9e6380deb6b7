"""The product of few rows compiles for an H200, without one, to what its prediction counts on.

No other GPU gets it; that its products with codes have room on each is in test_targets_compile.py.
"""

from __future__ import annotations

import pytest

from tests.m4.compiling import Kernels, compiled_by, compiled_once, faults

pytest.importorskip("triton")
pytestmark = compiled_once  # twenty kernels through a compiler

SMS, LATENCY, BANDWIDTH = 132, 0.8e-6, 4.3e12


@pytest.fixture(scope="module")
def all_compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compiled_by("tests.m11.cuda.few_rows_aot", tmp_path_factory.mktemp("triton"))


@pytest.fixture
def compiled(all_compiled: Kernels) -> Kernels:
    return {name: kernel for name, kernel in all_compiled.items() if not name.startswith("codes")}


def test_everything_is_in_registers(all_compiled: Kernels) -> None:
    assert faults(all_compiled, 90) == {}


def test_weights_are_asked_for_before_the_kernel_in_front_is_over_and_nothing_is_read(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        assert kernel["early"] == [], name
        assert kernel["asked_early"] * kernel["warps"] == kernel["weight_rows"], name  # a row each time


def test_programs_of_two_kernels_have_room_on_a_multiprocessor(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        assert 2 * (kernel["shared"] + 1024) <= 228 << 10, name
        assert 2 * kernel["registers"] * kernel["warps"] * 32 <= 65536, name


def test_enough_is_under_way_and_eight_rows_take_few_instructions(compiled: Kernels) -> None:
    """What memory delivers in its latency must be under way, where it was not asked for ahead: 96 programs at least."""
    for name, kernel in compiled.items():
        assert kernel["cp.async.cg.shared.global"] > 0, name
        if name.endswith(" 8 rows"):
            assert 64 * kernel["under_way"] >= LATENCY * BANDWIDTH * 0.9, name
            assert kernel["size"] <= 1100, name


def test_codes_are_asked_for_as_early_and_swiglu_adds_nothing_to_their_loop(
    all_compiled: Kernels, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = compiled_by("tests.m7.codes_aot", tmp_path_factory.mktemp("triton"))
    around = {name: kernel for name, kernel in all_compiled.items() if name.startswith("codes")}
    for name, kernel in (alone | around).items():
        assert kernel["early"] == [], name
        assert (kernel["asked_early"] > 0) is ("sums" not in name), name
    for codes in ("4", "e4m3"):
        for rows in (1, 32, 64):
            one, other = alone[f"bf16-{codes}-128-{rows}"], around[f"codes of {codes}, {rows} rows"]
            assert other["stack"] == 0
            assert other["shared"] <= one["shared"]
            assert other["loops"][0]["size"] <= one["loops"][0]["size"] + 4
