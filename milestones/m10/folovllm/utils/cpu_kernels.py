"""Compiles the C++ files of folovllm/csrc for this CPU at their first use, and loads them.

torch's own operators are compiled for every CPU and meet in memory. Kernels of our own are compiled for the CPU that is
there, and do in one pass what takes torch several. Without a C++ compiler torch's do the same, more slowly.

    csrc/*.cpp ──g++ -O3 -march=native──▶ ~/.cache/folovllm/kernels-<hash>.so ──ctypes──▶ functions that take pointers

The hash covers the sources, the compiler and the CPU's features. cached_library.py keeps the result. The threads are
the library's own (csrc/pool.h), as many as torch has.

    FOLOVLLM_CPU_KERNELS=no      in the environment: do without
    FOLOVLLM_CPU_TARGET          flags for the CPU, for a compiler that runs on another
    CXX                          the compiler, if it is not g++, or c++ on macOS

vLLM: cmake/cpu_extension.cmake
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
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
SYSTEM, MACHINE = platform.system(), platform.machine()
FLAGS = ("-O3", "-std=c++20", "-fPIC", "-fno-math-errno")
OF_CPU = "-march=native -mprefer-vector-width=512" if MACHINE == "x86_64" else "-mcpu=native"
NATIVE = tuple((os.environ.get("FOLOVLLM_CPU_TARGET") or OF_CPU).split())
NEEDED = {"avx2", "fma"} if MACHINE == "x86_64" else set()  # code without would be slower than torch's

WAYS_OUT = "set XDG_CACHE_HOME to a folder of yours, CXX to another compiler, or FOLOVLLM_CPU_KERNELS=no to do without"

POINTER, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
# What each function of csrc/kernels.h takes. The rest of a function's name says its dtypes: linear_float32.
ARGTYPES: dict[str, list[Any]] = {
    "add_rms_norm": [POINTER] * 4 + [INT] * 2 + [FLOAT],
    "norm_rotary": [POINTER] * 5 + [INT] * 5 + [FLOAT],
    "silu_mul": [POINTER] * 2 + [INT] * 2,
    "store_kv": [POINTER] * 2 + [INT] * 2 + [POINTER] * 3 + [INT] * 4,
    "decode": [POINTER, INT] + [POINTER] * 6 + [INT] * 6 + [FLOAT, POINTER],
    "prefill": [POINTER, INT] + [POINTER] * 6 + [INT] * 6 + [FLOAT, POINTER],
    "linear": [POINTER] * 4 + [INT] * 3,
    "decoder": [POINTER] * 3 + [INT] * 3 + [POINTER] * 4,
    "all_reduce": [POINTER] * 2 + [INT],
}
DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}  # in the functions' names


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
    """The compiled kernels. Raises a RuntimeError that says why, where they cannot run."""
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
    if (SYSTEM, MACHINE) not in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")):
        return "written for x86-64 and 64-bit Arm on Linux, and for Apple silicon"
    if missing := NEEDED - cpu_features():
        return f"the CPU lacks {' and '.join(sorted(missing))}"
    if SYSTEM == "Darwin" and subprocess.run(("xcode-select", "-p"), capture_output=True, check=False).returncode:
        return "no C++ compiler found: xcode-select --install brings one"  # its stub, /usr/bin/c++, opens a window
    compiler = shutil.which(os.environ.get("CXX") or ("c++" if SYSTEM == "Darwin" else "g++"))
    if compiler is None:
        return "no C++ compiler found: install g++, or name one in CXX"
    try:
        found = ctypes.CDLL(str(compiled(compiler, target)))
        of_torch = ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"), "")))
        found.set_threads(of_torch._ZN2at15get_num_threadsEv)  # at::get_num_threads()
        return found
    except subprocess.CalledProcessError as error:
        detail = error.stderr.strip() or str(error)
        reason = f"{compiler} failed: {detail.splitlines()[0]}"
    except (AttributeError, OSError, RuntimeError) as error:
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
    about = [_run(compiler, "--version", LC_ALL="C"), *FLAGS, *target, *sorted(cpu_features())]
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
        list(pool.map(lambda source, made: run("-c", str(source), "-o", str(made)), sources, objects))
    run("-shared", *map(str, objects), "-o", str(library))


def _run(*command: str, **environment: str) -> str:
    """What the command prints. Its words may come in any encoding."""
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, errors="replace", check=True
    ).stdout


@cache
def cpu_features() -> frozenset[str]:
    """What the CPU can do beyond its first models, in the words of Linux: avx2, amx_bf16, bf16."""
    if SYSTEM == "Darwin":  # hw.optional.arm.FEAT_BF16: 1
        told = subprocess.run(("sysctl", "hw.optional.arm"), capture_output=True, text=True, check=False).stdout
        return frozenset(re.findall(r"arm\.(?:feat_)?(\w+): 1", told.lower()))
    path = Path("/proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*:(.*)", path.read_text("utf-8") if path.exists() else "", re.MULTILINE)
    return frozenset(found[1].split() if found else ())
