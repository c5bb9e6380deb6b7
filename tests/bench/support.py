"""Shared by the benchmarks' tests: a command run as a user does, and the report that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from folovllm.entrypoints.cli.main import main
from workshop.bench.__main__ import MAKERS
from workshop.bench.__main__ import main as makers_main


def run(argv: list[str]) -> int:
    """The exit status of a benchmark, of the command that has it."""
    return makers_main(argv) if argv[0] in MAKERS else main(["bench", *argv])


def report(argv: list[str], path: Path) -> dict[str, Any]:
    """What it writes with --json."""
    assert run([*argv, "--json", str(path)]) == 0
    data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return data
