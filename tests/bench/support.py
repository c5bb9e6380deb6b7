"""Shared by the benchmarks' tests: a command run as a user does, and the report that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from folovllm.entrypoints.cli.main import main
from workshop.bench.__main__ import main as makers_main


def run(argv: list[str], program: str = "workshop") -> int:
    """The exit status of `python -m workshop.bench`, which has all kinds, or of `folovllm bench`."""
    return makers_main(argv) if program == "workshop" else main(["bench", *argv])


def report(argv: list[str], path: Path, program: str = "workshop") -> dict[str, Any]:
    """What it writes with --json."""
    assert run([*argv, "--json", str(path)], program) == 0
    data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return data
