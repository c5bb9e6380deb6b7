"""What `folovllm info` says of how OpenMP's threads wait."""

from __future__ import annotations

import pytest

from folovllm.utils import threads


def test_who_set_the_wait_policy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in threads.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert threads.wait_policy() == "OpenMP's default"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert threads.wait_policy() == "OMP_WAIT_POLICY=active, from the environment"
    monkeypatch.setattr(threads, "_ours", True)
    assert threads.wait_policy() == f"GOMP_SPINCOUNT={threads.SPINS}, set by folovllm"
