"""The CPU kernels, as compiled for this CPU and for one with AVX2 only."""

from __future__ import annotations

import pytest

from folovllm.attention.kernels import cpu as attention_kernels
from folovllm.layers.kernels import cpu
from folovllm.utils import cpu_kernels

REASON = cpu_kernels.unavailable_reason()
AVX2 = ("-march=haswell",)
CACHED = (cpu._kernel, cpu._linear, cpu.panel_width, cpu.has_bf16_pairs, attention_kernels._kernel)


@pytest.fixture(params=["this CPU", "AVX2"])
def target(request, monkeypatch):
    """The kernels as compiled for this CPU, and with vectors of 8 floats."""
    if REASON is not None:
        pytest.skip(f"the CPU kernels cannot run: {REASON}")
    flags = cpu_kernels.NATIVE if request.param == "this CPU" else AVX2
    for cached in CACHED:
        cached.cache_clear()
    monkeypatch.setattr(cpu, "library", lambda: cpu_kernels._load(flags))
    monkeypatch.setattr(cpu_kernels, "library", lambda: cpu_kernels._load(flags))
    yield
    for cached in CACHED:
        cached.cache_clear()
