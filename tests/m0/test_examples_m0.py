"""Every example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAYS = {
    "m0_state_machine.py": [
        "fork [11, 12, 99], parent [11, 12]: nothing is shared",
        "refused: status of sequence 'r-0' must not go from RUNNING to RUNNING",
        "finish reasons: ['stop', 'length']",
    ],
    "m0_sampling_params.py": [
        "RANDOM_SEED",
        "best_of (2) must be >= n (3)",
        "unknown keyword 'blocksize'; did you mean 'block_size'?",
    ],
    "m0_oracle.py": ["greedy continuation of [1, 2, 3]: [", "it lacks *.safetensors (weights)"],
}


def test_every_example_of_the_milestone_is_tried() -> None:
    assert {path.name for path in (ROOT / "examples").glob("m0_*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for text in SAYS[name]:
        assert text in done.stdout
