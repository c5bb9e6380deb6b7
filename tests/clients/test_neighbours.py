"""A measurement beside a busy neighbour says so; what is measured itself is no neighbour."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from folovllm.bench.neighbours import SAID_FROM, Neighbours, OtherLoad, own_ticks
from folovllm.bench.report import Report
from folovllm.entrypoints.cli.main import main

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux tells")

BURN = "import os\nprint(os.getpid(), flush=True)\nwhile True: pass"
ENOUGH = 20  # ticks of 10 ms, of which the kernel loses one here and there


@contextmanager
def child() -> Iterator[int]:
    """A busy process of ours."""
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def orphan() -> Iterator[int]:
    """A busy process whose parent has gone: it is in no tree of ours."""
    fork = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}])"
    with subprocess.Popen([sys.executable, "-c", fork], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait()
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


def let_it_run(pid: int) -> int:
    """Until it has had some ticks; returns how many."""
    before = own_ticks({pid})
    while (ticks := own_ticks({pid}) - before) < ENOUGH:
        sum(range(1000))
    return ticks


def test_the_time_of_a_process_that_is_not_ours_is_the_others() -> None:
    with orphan() as pid:
        neighbours = Neighbours()
        ticks = let_it_run(pid)
        load = neighbours.look()
    assert load is not None
    assert load.cpu_seconds >= (ticks - 2) / os.sysconf("SC_CLK_TCK")


def test_a_child_s_time_is_our_own_while_it_runs_and_after() -> None:
    before = own_ticks({os.getpid()})
    with child() as pid:
        ticks = let_it_run(pid)
        assert own_ticks({os.getpid()}) - before >= ticks
    assert own_ticks({os.getpid()}) - before >= ticks  # waited for: it is in our own line by now


def test_a_busy_neighbour_is_said_in_the_table_and_a_quiet_machine_is_not() -> None:
    def shown(load: OtherLoad | None) -> str:
        report = Report("x", "X", "c", columns=["a"], rows=[{"a": 1}], other_load=load)
        text = StringIO()
        report.show(Console(width=200, file=text))
        return text.getvalue()

    busy = OtherLoad(wall_seconds=10.0, cpu_seconds=12.0, stolen_seconds=0.0, cores=4)
    assert busy.share == pytest.approx(0.3)
    assert "other processes used 1.2 of 4 cores (30%)" in shown(busy)
    quiet = OtherLoad(wall_seconds=10.0, cpu_seconds=0.4, stolen_seconds=0.0, cores=4)
    assert "neighbours" not in shown(quiet)
    assert "neighbours" not in shown(None)


def test_a_command_s_json_says_what_else_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scheduler", "--waiting", "5", "--steps", "2", "--rounds", "1", "--json", "-"]) == 0
    load = json.loads(capsys.readouterr().out)["other_load"]
    assert set(load) == {"wall_seconds", "cpu_seconds", "stolen_seconds", "cores", "share", "is_busy"}
    assert load["share"] == pytest.approx(load["cpu_seconds"] / (load["wall_seconds"] * load["cores"]))
    assert load["cpu_seconds"] >= 0
    assert load["is_busy"] == (load["share"] > SAID_FROM)
