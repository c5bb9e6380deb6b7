"""What a machine can do is measured over a gibibyte; here a mebibyte will do."""

from __future__ import annotations

import pytest

from folovllm.bench import probe


@pytest.fixture(autouse=True)
def small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_BYTES", 2**20)
    monkeypatch.setattr(probe, "MATMUL_SIZE", {"cpu": 16})
