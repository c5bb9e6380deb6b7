"""The kernels for experts compile for a Hopper GPU as they were meant to; the interpreter could not tell."""

from __future__ import annotations

import pytest

from tests.m4.compiling import Kernels, compiled_by, compiled_once

pytest.importorskip("triton")
pytestmark = compiled_once  # eleven kernels through a compiler


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compiled_by(f"{__package__}.experts_aot", tmp_path_factory.mktemp("triton"))


def test_no_register_is_spilled_and_four_programs_have_room(compiled: Kernels) -> None:
    assert len(compiled) == 11
    for name, kernel in compiled.items():
        assert kernel["stack"] == 0, f"{name} spills {kernel['stack']} bytes of registers"
        assert 3 * (kernel["shared"] + 1024) <= 227 << 10, name
        assert 4 * kernel["registers"] * kernel["warps"] * 32 <= 65536, name


def test_weights_come_while_tiles_before_them_are_multiplied(compiled: Kernels) -> None:
    for name, kernel in compiled.items():
        if name.startswith(("gate_up", "down")):
            assert min(kernel["waits"], default=0) > 0, f"{name} waits for what it has just asked for"


def test_decodes_and_prompts_have_matrix_units(compiled: Kernels) -> None:
    for kernel in ("gate_up", "down"):
        assert compiled[f"{kernel}: few rows"]["mma.sync"] > 0
        assert compiled[f"{kernel}: many rows"]["wgmma.mma_async"] > 0
        assert compiled[f"{kernel}: float32"]["mma.sync"] == 0  # they would round it
