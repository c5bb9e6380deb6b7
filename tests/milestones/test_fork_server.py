"""A program that the fork server runs behaves as one that `python` starts: environment, path, exit code, end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from milestones.fork_server import serving


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with serving(tmp_path_factory.mktemp("serving") / "bin", ("json", "no_such_module")) as program:
        yield program


def run(python: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        text=True,
        capture_output=True,
        check=False,
    )


def test_a_program_has_its_own_environment_and_nothing_of_the_servers(python: Path) -> None:
    ours = "import os; print(sorted(set(os.environ) - {'LC_CTYPE', 'PWD'}))"  # a shell sets PWD
    done = run(python, "-c", ours, MINE="1")
    assert done.stdout == "['MINE', 'PATH']\n"


def test_modules_come_from_its_own_path_and_sitecustomize_runs_first(python: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.first = 'first'\n")
    (tmp_path / "mine.py").write_text("print(first)\n")
    assert run(python, "-m", "mine", PYTHONPATH=str(tmp_path)).stdout == "first\n"
    assert "No module named mine" in run(python, "-m", "mine").stderr


def test_code_that_asks_what_is_imported_does_not_see_what_the_server_has(python: Path) -> None:
    assert run(python, "-c", "import sys; print('json' in sys.modules)").stdout == "False\n"


def test_its_exit_code_is_the_clients(python: Path) -> None:
    assert run(python, "-c", "raise SystemExit(3)").returncode == 3
    assert run(python, "-c", "import os; os.abort()").returncode not in (0, 1)


def test_what_it_registered_runs_at_its_end(python: Path) -> None:
    assert run(python, "-c", "import atexit; atexit.register(print, 'last')").stdout == "last\n"


def test_a_program_ends_with_its_client(python: Path, tmp_path: Path) -> None:
    """The pipe's other end is the program's alone: it is at its end when the program is."""
    code = "import time; print('running', flush=True); time.sleep(600)"
    client = subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "running\n"
    client.kill()
    assert client.stdout.read() == ""
    client.wait()
