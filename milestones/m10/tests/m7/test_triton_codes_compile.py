"""The products with codes compile for a Hopper GPU as they were meant to: nothing is spilled, lines come while those
before them are multiplied, and the matrix units multiply what threads have taken apart in registers."""

from __future__ import annotations

import pytest

from tests.m4.compiling import Kernels, compiled_by, compiled_once

pytest.importorskip("triton")
pytestmark = compiled_once  # more than a dozen kernels through a compiler: half a minute


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compiled_by("tests.m7.codes_aot", tmp_path_factory.mktemp("triton"))


def test_no_register_is_spilled_and_an_sm_has_room(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        assert kernel["stack"] == 0, f"{name} spills {kernel['stack']} bytes of registers"
        assert kernel["registers"] * kernel["warps"] * 32 <= 65536, name
        assert kernel["shared"] < 227 << 10, name


def test_nothing_is_read_or_written_before_the_kernel_in_front_is_over(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        assert kernel["early"] == [], name


def test_lines_come_while_those_before_them_are_multiplied(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        if name.startswith(("bf16", "fp16")):
            assert kernel["waits"], f"{name} copies nothing ahead"
            assert min(kernel["waits"]) > 0, f"{name} waits for a line that it has just asked for"


def test_the_matrix_units_read_codes_out_of_registers(compiled: Kernels) -> None:
    """Were they stored to shared memory first, each piece would take a barrier."""
    for name, kernel in compiled.items():
        if name.startswith(("bf16", "fp16")):
            assert kernel["wgmma.mma_async"] > 0, name
            assert all(loop["BAR"] < 24 for loop in kernel["loops"]), name  # most of them waits for copies and products


def test_a_code_takes_less_than_six_instructions(compiled: Kernels) -> None:
    """A line of the program for few rows: 64 outputs of 256 columns, by 128 threads."""
    (loop,) = compiled["bf16-4-128-1"]["loops"]
    assert loop["size"] < 6 * 64 * 256 / 128


def test_two_programs_for_few_rows_share_an_sm(compiled: Kernels) -> None:
    for name in ("bf16-4-128-1", "bf16-8-128-1"):
        assert 2 * compiled[name]["registers"] * compiled[name]["warps"] * 32 <= 65536
        assert 2 * compiled[name]["shared"] < 227 << 10
