"""Compiles the C++ files of folovllm/csrc for this CPU at their first use, and loads them.

torch's own operators are compiled for every CPU, one after the other, and meet in memory. Kernels of our own can be
compiled for the CPU that is there, and do in one pass what takes torch several. They need a C++ compiler. Where there
is none, torch's operators do the same, more slowly.

    csrc/*.cpp ──g++ -O3 -march=native──▶ ~/.cache/folovllm/kernels-<hash>.so ──ctypes──▶ functions that take pointers

The hash covers the sources, the compiler and the CPU's features, so whatever changes is compiled anew.
cached_library.py keeps the result. No header of torch is needed, which is why it takes seconds. The threads are the
library's own (csrc/pool.h), as many as torch has.

    FOLOVLLM_CPU_KERNELS=no      in the environment: do without
    CXX                          the compiler, if it is not g++

vLLM: cmake/cpu_extension.cmake
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

from folovllm.utils.cached_library import cached_library
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

SOURCES = Path(__file__).parents[1] / "csrc"
FLAGS = ("-O3", "-std=c++20", "-fopenmp", "-fPIC", "-fno-math-errno")
NATIVE = ("-march=native", "-mprefer-vector-width=512")
# Code that AVX2 and fused multiply-add are missing for would be slower than torch's.
NEEDED = {"avx2", "fma"}

# One of them helps, whatever failed.
WAYS_OUT = (
    "set XDG_CACHE_HOME to a folder of yours to keep them elsewhere, CXX to another compiler, "
    "or FOLOVLLM_CPU_KERNELS=no to do without"
)

POINTER, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
# What each function of csrc/kernels.h takes. The rest of a function's name says its dtypes: linear_float32.
ARGTYPES: dict[str, list[Any]] = {
    "add_rms_norm": [POINTER] * 4 + [INT] * 2 + [FLOAT],
    "norm_rotary": [POINTER] * 5 + [INT] * 5 + [FLOAT],
    "silu_mul": [POINTER] * 2 + [INT] * 2,
    "store_kv": [POINTER] * 2 + [INT] * 2 + [POINTER] * 3 + [INT] * 4,
    "decode": [POINTER, INT] + [POINTER] * 6 + [INT] * 6 + [FLOAT] + [POINTER] * 2,
    "prefill": [POINTER, INT] + [POINTER] * 6 + [INT] * 6 + [FLOAT] + [POINTER] * 2,
    "linear": [POINTER] * 4 + [INT] * 3,
    "decoder": [POINTER] * 3 + [INT] * 3 + [POINTER] * 4,
    "all_reduce": [POINTER] * 2 + [INT],
}
# How the dtypes are called in the functions' names.
DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}


def unavailable_reason() -> str | None:
    """Why the kernels cannot run here, or None if they can. Compiles them when it is asked for the first time.

    Raises:
        ValueError: FOLOVLLM_CPU_KERNELS is neither "yes" nor "no".
    """
    wanted = os.environ.get("FOLOVLLM_CPU_KERNELS") or "yes"
    if wanted not in ("yes", "no"):
        raise ValueError(f"FOLOVLLM_CPU_KERNELS must be 'yes' or 'no', got {wanted!r}; unset it to use them")
    if wanted == "no":
        return "FOLOVLLM_CPU_KERNELS=no"
    found = _load(NATIVE)
    return found if isinstance(found, str) else None


def library() -> ctypes.CDLL:
    """The compiled kernels.

    Raises:
        RuntimeError: they cannot run here; the text says why.
    """
    found = _load(NATIVE)
    if isinstance(found, str):
        raise RuntimeError(f"the CPU kernels cannot run here: {found}")
    return found


@cache
def function(name: str) -> Any:
    """The compiled function of that name, which returns nothing; what it takes is in ARGTYPES.

    Raises:
        RuntimeError: the kernels cannot run here.
    """
    found = getattr(library(), name)
    found.argtypes = next(takes for kernel, takes in ARGTYPES.items() if name.startswith(f"{kernel}_"))
    found.restype = None
    return found


@cache
def _load(target: tuple[str, ...]) -> ctypes.CDLL | str:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "written for x86-64 on Linux"
    if missing := NEEDED - _cpu_features():
        return f"the CPU lacks {' and '.join(sorted(missing))}"
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        return "no C++ compiler found: install g++, or name one in CXX"
    try:
        return ctypes.CDLL(str(compiled(compiler, target)))
    except subprocess.CalledProcessError as error:
        detail = error.stderr.strip() or str(error)
        reason = f"{compiler} failed: {detail.splitlines()[0]}"
    except (OSError, RuntimeError) as error:
        detail = reason = str(error)
    logger.warning("the CPU kernels cannot run, torch's operators take their place: %s; %s", detail, WAYS_OUT)
    return reason


def compiled(compiler: str, target: tuple[str, ...] = NATIVE) -> Path:
    """The shared library, compiled if the cache does not have it.

    Raises:
        OSError, RuntimeError: there is nowhere to keep it.
        subprocess.CalledProcessError: the compiler fails; stderr has its words.
    """
    sources = sorted(SOURCES.iterdir())
    about = [_run(compiler, "--version", LC_ALL="C"), *FLAGS, *target, *sorted(_cpu_features())]
    digest = hashlib.sha256("|".join([*about, *(source.read_text("utf-8") for source in sources)]).encode()).hexdigest()
    units = [source for source in sources if source.suffix == ".cpp"]
    return cached_library(
        f"kernels-{digest[:16]}",
        "compiling the CPU kernels, once for this machine",
        lambda library: _compile(compiler, target, units, library),
    )


def _compile(compiler: str, target: tuple[str, ...], sources: list[Path], library: Path) -> None:
    objects = [library.with_name(f"{source.stem}.o") for source in sources]

    def run(*arguments: str) -> None:
        _run(compiler, *FLAGS, *target, *arguments, TMPDIR=str(library.parent))

    with ThreadPoolExecutor(len(sources)) as pool:
        jobs = zip(sources, objects, strict=True)
        list(pool.map(lambda job: run("-c", str(job[0]), "-o", str(job[1])), jobs))
    run("-shared", *map(str, objects), "-o", str(library))


def _run(*command: str, **environment: str) -> str:
    """What the command prints. Its words may come in any encoding."""
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, errors="replace", check=True
    ).stdout


@cache
def _cpu_features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
