"""A pytest plugin that writes down each test as it ends: what was found is kept when the run is killed.

    python -m pytest -p workshop.gpu_kit.recorder …      with the file's name in $FOLOVLLM_RECORD

A line of JSON for each phase of a test that says something: {"test", "outcome", "seconds", "text"}.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "FOLOVLLM_RECORD"
TEXT_LINES = 30


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(VARIABLE)
    # Where pytest-xdist deals the tests out, its workers' reports all pass through the first process.
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)))


class Recorder:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome
        if report.when != "call":
            if report.passed:
                return
            outcome = "error" if report.failed else outcome
        text = [] if report.passed else str(report.longrepr).splitlines()[-TEXT_LINES:]
        line = {"test": report.nodeid, "outcome": outcome, "seconds": round(report.duration, 3), "text": text}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def read(path: Path) -> dict[str, Any]:
    """How many tests ended how, those that went wrong, and the ten that took longest."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    tests = [json.loads(line) for line in lines if line.endswith("}")]
    counts: dict[str, int] = {}
    for test in tests:
        counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
    return {
        "counts": counts,
        "wrong": [test for test in tests if test["outcome"] in ("failed", "error")],
        "slowest": [
            {"test": test["test"], "seconds": test["seconds"]}
            for test in sorted(tests, key=lambda test: -test["seconds"])[:10]
        ],
    }
