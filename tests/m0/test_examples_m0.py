"""Every example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from tests.helpers import run_example

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
    "m0_oracle.py": ["greedy continuation of [1, 2, 3]: [", "without its weights: model "],
}


def test_every_example_is_tried_in_the_tests_of_its_milestone() -> None:
    for path in (ROOT / "examples").glob("m*.py"):
        tests = (ROOT / "tests" / path.name.partition("_")[0]).glob("test_*.py")
        assert any(path.name in test.read_text("utf-8") for test in tests), path.name


@pytest.mark.usefixtures("either_cpu")
@pytest.mark.parametrize("name", SAYS)
def test_example_says_what_it_sets_out_to_say(name: str) -> None:
    printed = run_example(name)
    for text in SAYS[name]:
        assert text in printed


def test_every_example_looks_for_the_package_in_its_own_tree_first() -> None:
    for path in (ROOT / "examples").glob("m*.py"):
        before, package, _ = path.read_text("utf-8").partition("from folovllm")
        assert not package or "\nimport _tree " in before, path.name


def test_an_example_runs_the_package_of_its_own_tree(tmp_path: Path) -> None:
    """Though another one is installed, as by `pip install -e .` in another tree, and a third is on PYTHONPATH."""
    tree = tmp_path / "tree"
    for part in ("folovllm", "examples"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("assets", "__pycache__"))
    for other in ("installed", "on the path"):
        (tmp_path / other / "folovllm").mkdir(parents=True)
        (tmp_path / other / "folovllm" / "__init__.py").write_text("raise SystemExit('of another tree')")
    venv.create(tmp_path / "venv", symlinks=True)
    (site_packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site_packages / "folovllm.pth").write_text(str(tmp_path / "installed"))  # all that an editable install is
    for path in ("", str(tmp_path / "on the path")):
        done = subprocess.run(
            [tmp_path / "venv" / "bin" / "python", "examples/m0_state_machine.py"],
            cwd=tree, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert "finish reasons: ['stop', 'length']" in done.stdout
