"""What a machine can do is measured over a gibibyte, and after a rest; here a mebibyte will do, and none."""

from __future__ import annotations

import pytest

from folovllm.bench import contestant, probe


@pytest.fixture(autouse=True)
def small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_BYTES", 2**20)
    monkeypatch.setattr(probe, "MATMUL_SIZE", {"cpu": 16})
    monkeypatch.setattr(contestant, "SETTLE", 0.0)
