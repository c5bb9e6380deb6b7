"""A checked-out tree runs itself: what its README says is run here, beside another folovllm that is installed.

That other one says "another tree" when it is imported. PYTHONPATH holds it, which comes before whatever is installed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from milestones import cli
from milestones.chain import Course
from milestones.sources import working_tree
from milestones.trees import build_tree, checkout, run_commands
from tests.milestones.conftest import M1, make_course

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = """\
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import folovllm

print("example of", folovllm.VERSION)
"""
FILES = {
    "milestones/m1/milestone.toml": M1.replace("examples = []", 'examples = ["examples/m1_*.py"]').replace(
        '"folovllm/engine.py"', '"folovllm/engine.py", "folovllm/__main__.py"'
    ),
    "folovllm/__main__.py": 'from folovllm import VERSION\n\nprint("command line of", VERSION)\n',
    "examples/m1_drive.py": EXAMPLE,
    "tests/m1/test_version.py": "from folovllm import VERSION\n\n\ndef test_it():\n    assert VERSION == 1\n",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With another folovllm in front of everything that is installed."""
    package = tmp_path / "installed/folovllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VERSION = 'another tree'\n")
    (package / "__main__.py").write_text("print('command line of another tree')\n")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    return {**clean, "PYTHONPATH": str(package.parent)}


def commands_of(folder: Path) -> str:
    """The README's block of commands that run the tree."""
    return re.findall(r"```bash\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]


def test_what_the_readme_says_runs_the_tree_and_not_what_is_installed(tmp_path: Path, environment: dict[str, str]):
    course = make_course(**FILES)
    checkout(course, course.get("m1"), tmp_path / "m1")
    commands = commands_of(tmp_path / "m1")
    assert commands.splitlines() == ["python examples/m1_drive.py", "python -m folovllm --help", "python -m pytest"]
    done = subprocess.run(
        ["bash", "-ec", commands.replace("python ", f"{shlex.quote(sys.executable)} ")],
        cwd=tmp_path / "m1",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "example of 1" in done.stdout
    assert "command line of 1" in done.stdout
    assert "3 passed" in done.stdout
    assert "another tree" not in done.stdout


def test_the_first_command_is_checkouts_last_line(repository: Path, tmp_path: Path, capsys):
    folder = tmp_path / "my trees" / "m1"
    assert cli.main(["checkout", "m1", str(folder)], repository) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Next: cd '{folder}' && python -m pytest"


def test_each_milestone_has_an_example_to_run_first_and_says_what_it_prints():
    course = Course.load(working_tree(ROOT))
    for milestone in course.milestones:
        tree = build_tree(course, milestone)
        first, *others = run_commands(milestone, tree)
        assert first.split()[1] in tree
        assert first.startswith(f"python examples/{milestone.id}_")
        assert others[-1] == "python -m pytest"
        assert milestone.expect, milestone.id
        assert milestone.expect in tree["README.md"].data.decode()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(len([*ROOT.glob("milestones/m*/milestone.toml")])))
def test_the_first_command_prints_what_the_readme_says(number: int, tmp_path: Path, environment: dict[str, str]):
    course = Course.load(working_tree(ROOT))
    milestone = course.milestones[number]
    checkout(course, milestone, tmp_path / "tree")
    command = [sys.executable, *run_commands(milestone, build_tree(course, milestone))[0].split()[1:]]
    done = subprocess.run(
        command, cwd=tmp_path / "tree", env=environment, capture_output=True, text=True, encoding="utf-8", check=True
    )
    lines = iter(done.stdout.splitlines())
    missing = [line for line in milestone.expect.splitlines() if line not in (seen.rstrip() for seen in lines)]
    assert missing == [], done.stdout
