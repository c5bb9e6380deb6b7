"""The kernels that add adapters compile for every GPU that they are meant for; the interpreter could not tell."""

from __future__ import annotations

import pytest

from tests.m4.compiling import Kernels, compiled_by, faults, needs_assembler

pytest.importorskip("triton")
pytestmark = [pytest.mark.exhaustive, needs_assembler]  # six kernels through a compiler, for each GPU


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compiled_by("tests.m12.lora_aot", tmp_path_factory.mktemp("triton"))


def test_on_hopper_eight_programs_have_room_and_columns_come_while_others_are_multiplied(hopper: Kernels) -> None:
    """Each of them waits for memory most of the time."""
    assert faults(hopper, 90) == {}
    for name, kernel in hopper.items():
        assert kernel["early"] == [], f"{name} reads before the kernel in front of it is over"
        assert (kernel["mma.sync"] > 0) is ("bf16" in name), name  # they would round float32
        if "bf16" in name:
            assert 8 * kernel["registers"] * kernel["warps"] * 32 <= 65536, name
            assert 8 * (kernel["shared"] + 1024) <= 227 << 10, name
        if name.startswith("shrink"):
            assert min(kernel["waits"], default=0) > 0, f"{name} waits for what it has just asked for"


@pytest.mark.parametrize("capability", [80, 89, 100, 120, "gfx90a", "gfx942"])
def test_there_is_room_on_every_other_gpu(capability: int | str, tmp_path_factory: pytest.TempPathFactory) -> None:
    kernels = compiled_by("tests.m12.lora_aot", tmp_path_factory.mktemp("triton"), capability=capability)
    assert faults(kernels, capability) == {}
