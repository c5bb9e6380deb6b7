"""The pytest plugin that writes down how a judge went, in a process of its own: one JSON object a line.

A line is out before the next test begins, so that what a crash leaves is known up to the test that crashed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab_judge import MEASURED, TREE, describe

WAIT = 6  # a test that waits may take so many times its seconds


class Recorder:
    """Writes what happens to the report, and stops a test that does not end."""

    def __init__(self, report: Path, crash: Path, seconds: float) -> None:
        self.report = report.open("a", encoding="utf-8")
        self.crash = crash.open("w", encoding="utf-8")
        self.seconds = seconds
        faulthandler.enable(self.crash)
        if hasattr(signal, "setitimer"):  # writes the stack even inside a call into C, then ends the process
            faulthandler.register(signal.SIGPROF, self.crash, all_threads=True, chain=True)
        self._watch(60)  # importing

    def write(self, event: str, **entries: Any) -> None:
        self.report.write(json.dumps({"event": event, **entries}) + "\n")
        self.report.flush()

    def _watch(self, seconds: float) -> None:
        """A test may compute for so many CPU seconds, whatever else the machine does. One that waits is stopped by the
        clock, later; so is any test where a process has no timer of CPU time."""
        has_timer = hasattr(signal, "setitimer")
        if has_timer:
            signal.setitimer(signal.ITIMER_PROF, seconds)
        faulthandler.dump_traceback_later(WAIT * seconds if has_timer else seconds, exit=True, file=self.crash)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        tests = [item.originalname for item in session.items if isinstance(item, pytest.Function)]
        marked = [getattr(item.function, "lab_invariant", None) for item in session.items if hasattr(item, "function")]
        self.write("collected", tests=tests, invariants=marked)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.write("skipped", test=report.nodeid)

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """Collecting failed: the judge imports the learner's file."""
        if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
            self.write("failed", test="import", **describe(call.excinfo.value, None))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write("start", test=nodeid.rpartition("::")[2])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        self._watch(self.seconds)
        yield
        self._watch(60)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Function, call: Any) -> Iterator[None]:
        outcome: Any = yield
        report = outcome.get_result()
        while MEASURED:
            self.write("measured", figure=MEASURED.pop(0))
        number = getattr(item.function, "lab_invariant", None)
        if report.skipped:
            self.write("skipped", test=item.name)
        elif report.failed:
            told = describe(call.excinfo.value, item.function)
            told["values"].update(_parameters(item))
            told["printed"] = report.capstdout[-2000:]
            self.write("failed", test=item.name, invariant=number, **told)
        elif report.when == "call":
            self.write("passed", test=item.name, invariant=number)

    def pytest_sessionfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        foreign = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name.partition(".")[0] != "folovllm" or not isinstance(file, str):
                continue
            if not Path(file).resolve().is_relative_to(TREE):
                foreign.append(f"{name} from {file}")
        self.write("end", foreign=foreign)


def _parameters(item: pytest.Function) -> dict[str, str]:
    spec = getattr(item, "callspec", None)
    return {} if spec is None else {name: repr(value)[:60] for name, value in spec.params.items()}


def pytest_configure(config: pytest.Config) -> None:
    if "LAB_REPORT" in os.environ:
        report, crash = Path(os.environ["LAB_REPORT"]), Path(os.environ["LAB_CRASH"])
        config.pluginmanager.register(Recorder(report, crash, float(os.environ["LAB_SECONDS"])), "lab-recorder")
