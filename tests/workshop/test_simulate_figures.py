"""The simulator's figures show what the stored simulations say, and the simulator still says it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from folovllm.entrypoints.cli.main import main
from workshop.simulate_figures import LOADS, stored

MEASURED = {"cpu_s", "faster"}
"""What depends on the machine that simulates."""


def test_the_simulator_still_says_what_is_stored(tmp_path: Path) -> None:
    """Else: python -m workshop.simulate_figures run"""
    argv = shlex.split(stored("simulate-cache")["command"])[1:]
    first, last = argv.index("--num-kv-blocks") + 1, argv.index("--json")
    out = tmp_path / "out.json"
    assert main([*argv[:first], "20000", "--json", str(out), *argv[last + 2 :]]) == 0
    (row,), before = json.loads(out.read_text())["rows"], stored("simulate-cache")["rows"][-1]
    assert before.pop("setting") == "blocks 20000"
    for column in row.keys() & before.keys() - MEASURED:
        assert row[column] == pytest.approx(before[column], rel=1e-9), column


@pytest.mark.parametrize("load", LOADS)
def test_a_stored_load_names_its_command_and_file(load: str) -> None:
    command = stored(f"simulate-{load}")["command"]
    assert command.startswith("folovllm bench simulate ")
    assert command.endswith(f"--json docs/benchmarks/data/simulate-{load}.json")
