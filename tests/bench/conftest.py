"""What a machine can do is measured over a gibibyte, and after a rest; here a mebibyte will do, and none."""

from __future__ import annotations

import pytest

from folovllm.bench import probe, race
from folovllm.bench.peers import registry
from tests.m4.conftest import fake_cuda, oracle, patch_once_a_launch, small_oracle
from tests.m6.conftest import text_model_folder
from workshop.bench.peers import exported, hf_continuous, nano_vllm

# The milestones' fixtures.
__all__ = ["fake_cuda", "oracle", "patch_once_a_launch", "small_oracle", "text_model_folder"]


@pytest.fixture(autouse=True)
def small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_BYTES", 2**20)
    monkeypatch.setattr(probe, "MATMUL_SIZE", {"cpu": 16})
    monkeypatch.setattr(race, "SETTLE", 0.0)


@pytest.fixture(autouse=True)
def all_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, make in {**nano_vllm.PEERS, **exported.PEERS, **hf_continuous.PEERS}.items():
        monkeypatch.setitem(registry.PEERS, name, make)
