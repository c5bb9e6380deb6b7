"""The fused layers' and the sampler's kernels compile for an H200, without one: Triton brings NVIDIA's assembler along.

The interpreter runs a kernel as Python and knows no types of loop variables, no layouts and no registers; here they are
checked.
"""

from __future__ import annotations

import pytest

from tests.m4.compiling import Kernels, compiled_by, compiled_once

pytest.importorskip("triton")
pytestmark = compiled_once  # seven kernels through a compiler: ten seconds

REGISTERS = 65536  # of a multiprocessor


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compiled_by("tests.m4.kernels_aot", tmp_path_factory.mktemp("triton"))


def test_everything_stands_in_registers(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        assert 0 < kernel["registers"] * kernel["warps"] * 32 <= REGISTERS, name
        assert kernel["stack"] == 0, f"{name} spills"


def test_nothing_is_read_or_written_before_the_kernel_in_front_is_over(compiled: Kernels) -> None:
    assert len(compiled) == 7
    for name, kernel in compiled.items():
        assert kernel["early"] == [], name


def test_a_draw_takes_ten_instructions_a_logit_and_no_barrier(compiled: Kernels) -> None:
    """A thread reads 8 tokens of each of its 8 stripes in a round, and computes 9 exponentials a stripe. Where rows are
    filtered, some more: what is dropped."""
    for name, most in (("lanes", 9.0), ("draw", 14.0), ("draw of edited", 14.0)):
        (loop,) = (loop for loop in compiled[name]["loops"] if loop["MUFU.EX2"] == 72)
        assert loop["BAR"] == 0, name
        assert loop["LDG"] == loop["LDG.E.128"] >= 8, name
        assert loop["size"] <= most * 64, name


def test_two_rows_are_drawn_on_a_multiprocessor_at_a_time(compiled: Kernels) -> None:
    draw = compiled["draw"]
    assert 2 * draw["registers"] * draw["warps"] * 32 <= REGISTERS


def test_layers_read_and_write_16_bytes_a_thread(compiled: Kernels) -> None:
    for name in ("norm", "rotary", "rotary alone", "silu"):
        assert compiled[name]["ld.global.v4"] >= 2, name
        assert compiled[name]["st.global.v4"] >= 1, name
    assert compiled["rotary"]["st.global.v4"] == 4  # q or k in place, and K or V into the cache: two halves each
