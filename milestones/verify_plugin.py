"""A pytest plugin for `verify`: writes a JSON report of how many tests were collected, which were skipped, and which
modules were imported from outside of the milestone's tree.

A green run proves nothing if the package came from elsewhere (an installed one, say), if nothing was collected, or if
tests were skipped. The file is copied into the test process's path and imports nothing of `milestones`, which is not
there. Run as a script it imports every module of the tree instead.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # as a script it runs without pytest, and starts sooner
    import pytest

TREE = "MILESTONE_TREE"  # the tree under test
REPOSITORY = "MILESTONE_REPOSITORY"  # this repository: nothing may be loaded from it
REPORT = "MILESTONE_REPORT"  # where the JSON goes
SLOW = "MILESTONE_SLOW"  # when set: the folder whose slow tests run; those of other folders are left out
IMPORT = "MILESTONE_IMPORT"  # when set: import every module behind the tests, which saves a process


def foreign_modules() -> list[str]:
    """Loaded modules of this project that do not come from the tree."""
    tree = Path(os.environ[TREE]).resolve()
    repository = Path(os.environ[REPOSITORY]).resolve()
    environment = Path(sys.prefix).resolve()  # a .venv inside the repository is no part of it
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(tree) or path.is_relative_to(environment):
            continue
        if name.partition(".")[0] == "folovllm" or path.is_relative_to(repository):
            found.append(f"{name} from {path}")
    return sorted(found)


MAY_LACK = {"gpu", "avx512"}  # marks of tests that need what not every machine has


class Report:
    """Counts the collected tests, and lists the skipped ones that this machine could have run."""

    def __init__(self) -> None:
        self.collected = 0
        self.skipped: list[str] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if (folder := os.environ.get(SLOW)) is None:
            return
        left_out = [item for item in items if "slow" in item.keywords and not item.nodeid.startswith(f"{folder}/")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = len(session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not MAY_LACK & report.keywords.keys() and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        seen: dict[str, Any] = {"collected": self.collected, "skipped": self.skipped}
        if IMPORT in os.environ:
            try:
                seen["modules"] = import_everything()
            except Exception as error:
                seen["import_error"] = f"{type(error).__name__}: {error}"
        seen["foreign"] = foreign_modules()
        Path(os.environ[REPORT]).write_text(json.dumps(seen), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if REPORT in os.environ:
        config.pluginmanager.register(Report(), "milestone-report")


def import_everything() -> int:
    """Import each module of the tree's package; returns how many."""
    package = importlib.import_module("folovllm")
    names = [m.name for m in pkgutil.walk_packages(package.__path__, "folovllm.")]
    for name in names:
        if not name.endswith(".__main__"):
            importlib.import_module(name)
    return len(names)


if __name__ == "__main__":
    count = import_everything()
    if foreign := foreign_modules():
        sys.exit("loaded from outside the tree: " + "; ".join(foreign))
    print(count)
