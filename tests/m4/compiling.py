"""Kernels as they are for a GPU: through Triton's compiler, in a process of its own because a process has either the
interpreter or the compiler."""

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

Kernels = dict[str, dict[str, Any]]
needs_assembler = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64",
    reason="NVIDIA's assembler comes with the wheels for Linux on x86-64",
)
compiled_once = [pytest.mark.exhaustive, pytest.mark.together, needs_assembler]
"""Of a file whose tests all look at kernels that a compiler makes once for them, which takes long."""


def compiled_by(program: str, folder: Path, *words: str, capability: int | str = 90) -> Kernels:
    """What `python -m program` prints of the kernels that it compiles: {name: what came out}. capability: of the GPU,
    80 for 8.0; or an AMD GPU's name."""
    package, here = Path(folovllm.__file__).parents[1], Path(__file__).parents[2]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = os.pathsep.join(dict.fromkeys([str(package), str(here), *sys.path]))  # the same Triton, too
    env |= {"PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder), "COMPILE_FOR": str(capability)}
    command = [sys.executable, "-m", program, *words]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SHARED_KB: dict[int | str, int] = {75: 64, 80: 163, 89: 99, 90: 227, 100: 227, 120: 99, "gfx90a": 64, "gfx942": 64}
"""Of shared memory, for a program, by the GPU's compute capability: 80 is 8.0."""


def faults(kernels: Kernels, capability: int | str) -> dict[str, str]:
    """What keeps a kernel from running on such a GPU, or makes it slow: {name: what}. Prompts, which have
    more time, and float32 may spill some registers; others six at most, as a cache of int8 with Triton 3.6."""
    found = {}
    for name, kernel in kernels.items():
        spill = 256 if name.startswith("prefill") or "fp32" in name else 24
        wrong = {
            "a trap": kernel["traps"] > 0,
            f"{kernel['tensor_memory']} columns of tensor memory": kernel["tensor_memory"] > 512,
            f"{kernel['shared']} bytes of shared memory": kernel["shared"] > SHARED_KB[capability] << 10,
            f"{kernel['registers']} registers": kernel["registers"] * kernel["warps"] * 32 > 65536,
            f"{kernel['stack']} bytes of registers spilled": kernel["stack"] > spill,
        }
        if any(wrong.values()):
            found[name] = ", ".join(what for what, is_so in wrong.items() if is_so)
    return found
