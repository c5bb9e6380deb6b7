"""Shared by the benchmarks' tests: a command run as a user does, and the report that it writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from folovllm.bench.peers import hf, registry
from folovllm.entrypoints.cli.main import main


def bench_report(argv: list[str], path: Path) -> dict[str, Any]:
    """A report that is as the documentation wants it. Hugging Face runs in this process, to save the imports."""
    with mock.patch.dict(registry.PEERS, hf.PEERS):
        assert main(["bench", *argv, "--json", str(path)]) == 0
    data: dict[str, Any] = json.loads(path.read_text())
    assert data["name"] == path.stem
    assert data["command"] == f"folovllm bench {' '.join(argv)} --json {path}"
    for row in data["rows"]:
        assert list(row) == data["columns"]
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
    return data


def bench(argv: list[str], path: Path) -> list[dict[str, Any]]:
    """The rows of such a report."""
    rows: list[dict[str, Any]] = bench_report(argv, path)["rows"]
    return rows


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that is refused says."""
    assert main(["bench", *argv]) == 2
    return capsys.readouterr().err
