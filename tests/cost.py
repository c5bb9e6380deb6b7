"""What the tests cost: CPU seconds by folder, by file and by test, and what starts processes.

A pytest plugin: `make test ARGS="-p tests.cost"`. Wall time is a poor guide to what a suite costs, since two workers
share the cores with the processes that tests start. So each test is charged with what its worker has computed
meanwhile, and with what the processes have computed that it has waited for (`os.times`).
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import PurePath

import pytest
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PROPERTY = "cost"
STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty")

started = 0  # processes that this one has started


def _count_starts(event: str, args: tuple[object, ...]) -> None:
    global started
    if event in STARTS:
        started += 1


def _cpu() -> tuple[float, float]:
    """CPU seconds of this process, and of its children that have ended and were waited for."""
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


@dataclass
class Cost:
    tests: int = 0
    wall: float = 0.0  # seconds
    own: float = 0.0  # CPU seconds in the worker
    children: float = 0.0  # CPU seconds in processes that the tests started
    processes: int = 0

    def add(self, wall: float, own: float, children: float, processes: int) -> None:
        self.tests += 1
        self.wall += wall
        self.own += own
        self.children += children
        self.processes += processes

    @property
    def cpu(self) -> float:
        return self.own + self.children


@dataclass(eq=False)  # pytest keeps plugins in sets
class CostPlugin:
    """In a worker it measures each test; in the process that the user started it adds up what the reports bring."""

    files: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    tests: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    workers: dict[str, tuple[float, float]] = field(default_factory=dict)  # seconds with tests; when the last one ended
    begun: float = field(default_factory=time.time)
    before: tuple[float, float, float, int] = (0.0, 0.0, 0.0, 0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.before = (time.perf_counter(), *_cpu(), started)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            wall, own, children, processes = self.before
            now = _cpu()
            cost = (time.perf_counter() - wall, now[0] - own, now[1] - children, started - processes)
            report.user_properties.append((PROPERTY, cost))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = dict(report.user_properties).get(PROPERTY)
        if report.when != "teardown" or cost is None:
            return
        self.files[report.nodeid.split("::", 1)[0]].add(*cost)
        self.tests[report.nodeid].add(*cost)
        worker = getattr(getattr(report, "node", None), "gateway", None)
        name = "main" if worker is None else str(worker.id)
        busy, _ = self.workers.get(name, (0.0, 0.0))
        self.workers[name] = (busy + cost[0], time.time() - self.begun)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        console = Console(file=terminalreporter._tw._file, width=120)
        folders: dict[str, Cost] = defaultdict(Cost)
        for name, cost in self.files.items():
            total = folders[str(PurePath(name).parent)]
            total.tests += cost.tests
            total.wall += cost.wall
            total.own += cost.own
            total.children += cost.children
            total.processes += cost.processes
        console.print()
        console.print(_table("folder", folders, len(folders)))
        console.print(_table("file", self.files, 60))
        console.print(_table("test", self.tests, 60))
        total, times = sum(cost.cpu for cost in self.files.values()), os.times()
        everything = times.user + times.system + times.children_user + times.children_system
        console.print(f"CPU seconds: {total:.0f} in tests, {everything:.0f} with imports and collection.")
        for name, (busy, end) in sorted(self.workers.items()):
            console.print(f"{name}: {busy:.0f} s with tests, the last one ended after {end:.0f} s.")


def _table(what: str, costs: dict[str, Cost], most: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"Cost of the tests by {what}")
    table.add_column(what, overflow="fold")
    for column in ("tests", "wall s", "CPU s", "in children", "processes"):
        table.add_column(column, justify="right")
    for name, cost in sorted(costs.items(), key=lambda item: -item[1].cpu)[:most]:
        numbers = (f"{cost.wall:.1f}", f"{cost.cpu:.1f}", f"{cost.children:.1f}")
        table.add_row(escape(name), str(cost.tests), *numbers, str(cost.processes or ""))
    return table


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(_count_starts)
    config.pluginmanager.register(CostPlugin())
