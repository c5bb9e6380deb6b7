"""`serve --replicas`: what is refused before Ray is imported."""

from __future__ import annotations

import sys

import pytest

from folovllm.entrypoints.cli.main import main


def test_without_ray_one_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fastapi_offline")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["serve", "--replicas", "2"]) == 2
    assert "pip install -e '.[serve,ray]' in the clone" in capsys.readouterr().err


def test_a_router_without_replicas_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi_offline")
    assert main(["serve", "--router", "round-robin"]) == 2
    assert "router must be given with --replicas" in capsys.readouterr().err
