"""The kernels for experts compile for a Hopper GPU as they were meant to; the interpreter could not tell."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import folovllm

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.exhaustive,  # eleven kernels through a compiler
    pytest.mark.skipif(
        platform.system() != "Linux" or platform.machine() != "x86_64",
        reason="NVIDIA's assembler comes with the wheels for Linux on x86-64",
    ),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    package, here = Path(folovllm.__file__).parents[1], Path(__file__).parents[2]
    folder = tmp_path_factory.mktemp("triton")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = os.pathsep.join(dict.fromkeys([str(package), str(here), *sys.path]))  # the same Triton, too
    env |= {"PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", f"{__package__}.experts_aot"]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_no_register_is_spilled_and_four_programs_have_room(compiled: dict[str, dict[str, Any]]) -> None:
    assert len(compiled) == 11
    for name, kernel in compiled.items():
        assert kernel["stack"] == 0, f"{name} spills {kernel['stack']} bytes of registers"
        assert 3 * (kernel["shared"] + 1024) <= 227 << 10, name
        assert 4 * kernel["registers"] * kernel["warps"] * 32 <= 65536, name


def test_weights_come_while_tiles_before_them_are_multiplied(compiled: dict[str, dict[str, Any]]) -> None:
    for name, kernel in compiled.items():
        if name.startswith(("gate_up", "down")):
            assert min(kernel["waits"], default=0) > 0, f"{name} waits for what it has just asked for"


def test_decodes_and_prompts_have_matrix_units(compiled: dict[str, dict[str, Any]]) -> None:
    for kernel in ("gate_up", "down"):
        assert compiled[f"{kernel}: few rows"]["mma.sync"] > 0
        assert compiled[f"{kernel}: many rows"]["wgmma.mma_async"] > 0
        assert compiled[f"{kernel}: float32"]["mma.sync"] == 0  # they would round it
