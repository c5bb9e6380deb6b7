"""The CPU kernels, as compiled for this CPU and for some with less: AVX2 only, AVX-512 without VNNI, no AMX."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers import compiled_ops as cpu
from folovllm.utils import cpu_kernels

REASON = cpu_kernels.unavailable_reason()
NEEDS_KERNELS = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
TARGETS = {"this CPU": cpu_kernels.NATIVE} | ({"AVX2": ("-march=haswell",)} if cpu_kernels.MACHINE == "x86_64" else {})
if "amx_bf16" in cpu_kernels.cpu_features():
    TARGETS["no AMX"] = (*cpu_kernels.NATIVE, "-mno-amx-bf16")
if "avx512f" in cpu_kernels.cpu_features():
    TARGETS["AVX-512, no VNNI"] = ("-march=skylake-avx512", "-mprefer-vector-width=512")
CACHED = (cpu_kernels.function, cpu.panel_width, cpu.has_bf16_pairs, cpu.has_tiles, cpu.product_name)


@pytest.fixture(
    params=[name if name == "this CPU" else pytest.param(name, marks=pytest.mark.exhaustive) for name in TARGETS]
)
def target(request, monkeypatch):
    """The kernels as compiled for this CPU, and in `make exhaustive` for the others: that costs some 20 CPU seconds."""
    if REASON is not None:
        pytest.skip(f"the CPU kernels cannot run: {REASON}")
    flags = TARGETS[request.param]
    for cached in CACHED:
        cached.cache_clear()
    monkeypatch.setattr(cpu, "library", lambda: cpu_kernels._load(flags))
    monkeypatch.setattr(cpu_kernels, "library", lambda: cpu_kernels._load(flags))
    yield
    for cached in CACHED:
        cached.cache_clear()


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Of all numbers together."""
    return ((got.double() - want).norm() / want.norm()).item()
