"""The kernels that read the KV cache in int8 compile for a Hopper GPU as those for fp8 do: nothing is spilled, and
codes and scales are on their way while the tiles before them are multiplied."""

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
    pytest.mark.exhaustive,  # some kernels through a compiler
    pytest.mark.skipif(
        platform.system() != "Linux" or platform.machine() != "x86_64",
        reason="NVIDIA's assembler comes with the wheels for Linux on x86-64",
    ),
]

Kernels = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    package, here = Path(folovllm.__file__).parents[1], Path(__file__).parents[2]
    folder = tmp_path_factory.mktemp("triton")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = os.pathsep.join(dict.fromkeys([str(package), str(here), *sys.path]))  # the same Triton, too
    env |= {"PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", f"{__package__}.int8_cache_aot"]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
