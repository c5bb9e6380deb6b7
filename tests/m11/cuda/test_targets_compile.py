"""Every kernel compiles for every GPU that it is meant for, without one: no trap, no more shared memory, registers and
tensor memory than there are, and no register spilled.

A new kernel's program joins PROGRAMS, or a test of its own takes compiled_by(..., capability=...) and faults().
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.m4.compiling import Kernels, compiled_by, faults, needs_assembler

pytest.importorskip("triton")
pytestmark = [pytest.mark.exhaustive, needs_assembler]  # some kernels through a compiler, for each GPU

# A100, L4 and RTX 40, B200, RTX 50; AMD's MI200 and MI300. Hopper's have tests of their own.
CAPABILITIES = (80, 89, 100, 120, "gfx90a", "gfx942")
ATTENTION_8_BITS = ("decode-bf16", "prefill-bf16-128", "decode-fp16", "decode-fp32-128", "store", "linear")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "tests.m4.kernels_aot": (),
    "tests.m4.attention_aot": ("few",),
    "tests.m11.cuda.extras_aot": (),
    "tests.m6.aot": ATTENTION_8_BITS,
    "tests.m7.codes_aot": (),
    "tests.m7.int8_cache_aot": (),
    "tests.m10.experts_aot": (),
    "tests.m11.cuda.experts_codes_aot": (),
    "tests.m11.cuda.few_rows_aot": (),
}
# What a T4 gets; torch computes its prompts.
TURING = {"tests.m4.kernels_aot": (), "tests.m4.attention_aot": ("few", "decode")}


@pytest.fixture(scope="module")
def faults_of(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def find(program: str, capability: int | str) -> dict[str, str]:
        words = (TURING if capability == 75 else PROGRAMS)[program]
        kernels: Kernels = compiled_by(program, tmp_path_factory.mktemp("triton"), *words, capability=capability)
        assert kernels
        return faults(kernels, capability)

    return find


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels_have_room_on_every_gpu(program: str, capability: int | str, faults_of) -> None:
    assert faults_of(program, capability) == {}


@pytest.mark.parametrize("program", ["tests.m11.cuda.extras_aot", "tests.m11.cuda.experts_codes_aot"])
def test_windows_soft_caps_and_sinks_and_experts_with_codes_have_room_on_hopper(program: str, faults_of) -> None:
    assert faults_of(program, 90) == {}


@pytest.mark.parametrize("program", TURING)
def test_small_kernels_and_decode_have_room_on_a_t4(program: str, faults_of) -> None:
    assert faults_of(program, 75) == {}
