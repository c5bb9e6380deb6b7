"""What a measurement was made on: versions and hardware, for the caption under every table. vLLM: collect_env.py"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from folovllm import __version__
from folovllm.utils.devices import total_memory_bytes

# What matters to a matrix product: Linux's name, or macOS's, of the capability -> the name people use.
_FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX512-BF16",
    "avx512_vnni": "AVX512-VNNI",
    "avx512_fp16": "AVX512-FP16",
    "amx_tile": "AMX",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimd": "NEON",
    "advsimd": "NEON",
    "asimddp": "SDOT",
    "dotprod": "SDOT",
    "sve": "SVE",
    "bf16": "BF16",
}


def versions() -> dict[str, str]:
    ours = {"folovllm": __version__, "python": platform.python_version()}
    return ours | {name: version(name) for name in ("torch", "transformers")}


def hardware() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "units": "/".join(cpu_features()) or None,
        "memory_gib": round(total_memory_bytes(torch.device("cpu")) / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        facts["gpus"] = [
            f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {gpu.multi_processor_count} SMs, "
            f"compute capability {gpu.major}.{gpu.minor}, CUDA {torch.version.cuda}"
            for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ]
    return facts


def cpu_name() -> str:
    if platform.system() == "Darwin":
        told = subprocess.run(("sysctl", "-n", "machdep.cpu.brand_string"), capture_output=True, text=True, check=False)
        return told.stdout.strip() or platform.machine()
    path = Path("/proc/cpuinfo")
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    from folovllm.utils import cpu_kernels

    return [label for name, label in _FEATURES.items() if name in cpu_kernels.cpu_features()]
