"""The attention kernels compile for a Hopper GPU, and as they were meant to; the interpreter could not tell."""

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
    pytest.mark.slow,  # ten kernels through a compiler: seven seconds
    pytest.mark.exhaustive,  # test_kernels_compile.py sends others through it in every run
    pytest.mark.skipif(platform.machine() != "x86_64", reason="NVIDIA's assembler comes with x86-64 wheels"),
]

SHARED_MEMORY = 227 << 10  # of an SM, for its programs
SYSTEM_SHARED = 1 << 10  # what the system takes of it for each


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    package, here = Path(folovllm.__file__).parents[1], Path(__file__).parents[2]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([str(package), str(here)])),
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
    }
    command = [sys.executable, "-m", "tests.m4.attention_aot"]
    done = subprocess.run(command, env=env, cwd=env["TRITON_CACHE_DIR"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kernel_compiles_and_fits_an_sm(compiled: dict[str, dict[str, Any]]) -> None:
    for name, kernel in compiled.items():
        assert kernel["cubin"] > 0, name
        assert kernel["shared"] + SYSTEM_SHARED <= SHARED_MEMORY, name


def test_k_and_v_are_fetched_ahead_in_pieces_of_16_bytes(compiled: dict[str, dict[str, Any]]) -> None:
    """cp.async.cg comes in 16 bytes alone. The loop's body and what runs before it have some each for K and for V."""
    for name in ("decode", "decode in splits", "decode, heads of 80", "prefill"):
        assert compiled[name]["cp.async.cg.shared.global"] >= 16, name


def test_four_programs_of_decode_share_an_sm(compiled: dict[str, dict[str, Any]]) -> None:
    assert 4 * (compiled["decode"]["shared"] + SYSTEM_SHARED) <= SHARED_MEMORY


def test_matrix_units_multiply_16_bits_and_float32_stays_exact(compiled: dict[str, dict[str, Any]]) -> None:
    assert compiled["prefill"]["wgmma.mma_async"] > 0
    assert compiled["prefill, heads of 256"]["wgmma.mma_async"] > 0
    assert compiled["decode"]["mma.sync"] > 0
    for name in ("decode, float32", "prefill, float32"):
        assert compiled[name]["mma.sync"] == compiled[name]["wgmma.mma_async"] == 0, name


def test_store_kv_moves_16_bytes_a_thread(compiled: dict[str, dict[str, Any]]) -> None:
    assert compiled["store"]["ld.global.v4"] == compiled["store"]["st.global.v4"] == 2  # K and V
