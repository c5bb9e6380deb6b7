"""What a machine can do is measured over a gibibyte, and after a rest; here a mebibyte will do, and none."""

from __future__ import annotations

import pytest

from workshop.bench import contestant, roofline, rounds, sampler
from workshop.bench.peers import more


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "PROBE_BYTES", 2**20)
    monkeypatch.setattr(roofline, "MATMUL_SIZE", {"cpu": 16})
    monkeypatch.setattr(rounds, "SETTLE", 0.0)
    monkeypatch.setattr(sampler, "SECONDS_PER_CASE", 0.0)


@pytest.fixture(autouse=True)
def all_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, make in more.PEERS.items():
        monkeypatch.setitem(contestant.PEERS, name, make)
    for flag, option in more.OPTIONS.items():
        monkeypatch.setitem(contestant.PEER_OPTIONS, flag, option)
