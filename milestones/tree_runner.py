"""Runs one milestone's tree in processes of its own: imports every module, runs its tests, reports what went wrong.

The tree is written to a folder, and its processes see that folder and nothing else of this project. What pytest saw
comes back as JSON from `verify_plugin`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from milestones import verify_plugin
from milestones.sources import Snapshot
from milestones.spec import Milestone
from milestones.trees import write_tree

TIMEOUT = 15 * 60  # seconds for one milestone's tests
# The largest grids are run once, at the root: `make exhaustive`.
PART = "not exhaustive"
# Those left out come with packages of serve-test, and each process would spend a second on them.
PLUGINS = [
    "-p",
    "milestone_verify_plugin",
    *(f"-pno:{name}" for name in ("cacheprovider", "langsmith_plugin", "schemathesis")),
]


@dataclass
class Result:
    """What verifying one milestone found, or one step on the way to it."""

    milestone: Milestone
    step: str = ""  # "M3.2"
    modules: int = 0
    tests: int = 0
    seconds: float = 0.0
    note: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.step or self.milestone.id


class TreeRunner:
    """A folder with one tree in it, and processes that see that tree and nothing else of this project."""

    def __init__(self, root: Path, scratch: Path, tree: Snapshot, python: str = sys.executable) -> None:
        self.python = python
        self.tree = scratch / "tree"
        self.report = scratch / "report.json"
        plugins = scratch / "plugins"
        plugins.mkdir()
        shutil.copy(verify_plugin.__file__, plugins / "milestone_verify_plugin.py")
        self.plugin = plugins / "milestone_verify_plugin.py"
        write_tree(tree, self.tree)
        self.env = {
            **{k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")},
            "PYTHONPATH": f"{self.tree}{os.pathsep}{plugins}",
            verify_plugin.TREE: str(self.tree),
            verify_plugin.REPOSITORY: str(root),
        }

    def run(self, *args: str, **env: str) -> tuple[int, str]:
        try:
            done = subprocess.run(
                [self.python, *args],
                cwd=self.tree,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 1, f"did not finish within {TIMEOUT} s"
        return done.returncode, done.stdout

    def import_modules(self, result: Result) -> None:
        code, output = self.run(str(self.plugin))
        if code:
            result.problems.append(f"importing the package failed: {tail(output)}")
        else:
            result.modules = int(output.splitlines()[-1])

    def run_tests(
        self, result: Result, paths: list[str], *options: str, slow: str | None = None, with_imports: bool = False
    ) -> None:
        """Run the tests under `paths`, of the slow ones only those in the folder `slow` where one is given;
        `with_imports` imports every module behind them, in the same process."""
        self.report.unlink(missing_ok=True)
        code, output = self.run(
            *("-m", "pytest", *PLUGINS, "-m", PART, *options, *paths),
            **{verify_plugin.REPORT: str(self.report)},
            **({verify_plugin.IMPORT: "1"} if with_imports else {}),
            **({verify_plugin.SLOW: slow} if slow else {}),
        )
        if code:
            order = next((line for line in output.splitlines() if "--randomly-seed" in line), "file by file")
            result.problems.append(f"its tests failed ({order}): {tail(output, 30)}")
        if not self.report.is_file():
            result.problems.append("its tests left no report")
            return
        seen = json.loads(self.report.read_text(encoding="utf-8"))
        result.tests = seen["collected"]
        result.modules = seen.get("modules", result.modules)
        if "import_error" in seen:
            result.problems.append(f"importing the package failed: {seen['import_error']}")
        if not result.tests:
            result.problems.append("no test was collected")
        result.problems += [f"{test} was skipped" for test in seen["skipped"]]
        result.problems += [f"loaded from outside the tree: {module}" for module in seen["foreign"]]


def tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
