"""`serve --replicas`: what is refused before Ray is imported."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from folovllm.entrypoints.cli.main import main
from folovllm.serving.replicas.options import ReplicaOptions


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "replicas must be positive, got 0"),
        ({"router": "nearest"}, "router must be one of .*, got 'nearest'"),
        ({"router": "round-robin", "router_margin": 3.0}, "router_margin must be given with --router prefix-affinity"),
        ({"router_margin": -1.0}, "margin must be non-negative, got -1"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplicaOptions(**options)
