"""The compiled CPU kernels on the disk: whatever has become of the file or its folder, a run either has the kernels as
they were compiled or does without them, says so once, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from folovllm.utils import cpu_kernels
from tests.helpers import our_warnings

REASON = cpu_kernels.unavailable_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
ROOT = Path(cpu_kernels.__file__).parents[2]

# A library large enough to have pages at its end that a shorter file lacks.
SOURCE = """char far[1 << 16] = {1};
extern "C" int panel_width() { return 6 + far[0]; }
extern "C" void set_threads(int (*)()) {}
"""
# What a process says on stderr where there is no library yet; one that finds it says nothing.
COMPILES = "compiling the CPU kernels, once for this machine …\n"
# What a process of its own does: say what the kernels answer, or why there are none.
USE = """
import importlib.util, sys, types
from pathlib import Path
file = importlib.util.find_spec("torch").origin  # its import takes seconds; here are names
sys.modules["torch"] = types.SimpleNamespace(float32=1, bfloat16=2, int8=3, __file__=file)
from folovllm.utils import cpu_kernels
cpu_kernels.SOURCES = Path(sys.argv[1])
reason = cpu_kernels.unavailable_reason()
print(reason or cpu_kernels.library().panel_width())
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One small source in the place of csrc/, an empty cache, and a folder of its own for what is temporary."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "one.cpp").write_text(SOURCE)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(cpu_kernels, "SOURCES", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cpu_kernels._load.cache_clear()
    yield folder
    cpu_kernels._load.cache_clear()


def compiled() -> Path:
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    assert compiler is not None
    return cpu_kernels.compiled(compiler)


@pytest.fixture
def library(sources: Path) -> Path:
    """It, compiled, and not loaded by this process."""
    return compiled()


def cache(sources: Path) -> Path:
    return sources.parent / "cache" / "folovllm"


def start(sources: Path, **more: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", USE, str(sources)], **pipes, **more)


def assert_nothing_is_left(sources: Path, libraries: int = 1) -> None:
    assert sorted(path.suffix for path in cache(sources).iterdir() if path.suffix) == [".sha256", ".so"] * libraries
    assert {path.name for path in cache(sources).iterdir() if not path.suffix} <= {".lock"}
    assert list((sources.parent / "tmp").iterdir()) == []


# --- what became of the file


def empty(library: Path) -> None:
    os.truncate(library, 0)


def swap(library: Path) -> None:
    """For a library that can be loaded, and has nothing that is called."""
    other = library.with_name("other.cpp")
    other.write_text("int other;\n")
    subprocess.run(["g++", "-shared", "-fPIC", str(other), "-o", str(library)], check=True)
    other.unlink()


def change_a_byte(library: Path) -> None:
    """In a constant: it could be loaded, and would answer wrongly."""
    content = bytearray(library.read_bytes())
    content[content.rindex(b"\1" + bytes(1000))] = 2
    library.write_bytes(content)


def forget_the_digest(library: Path) -> None:
    library.with_suffix(".sha256").unlink()


@pytest.mark.parametrize("damage", [empty, swap, change_a_byte, forget_the_digest])
def test_a_damaged_library_is_compiled_again(damage: Any, library: Path, sources: Path) -> None:
    damage(library)
    assert cpu_kernels.unavailable_reason() is None
    assert cpu_kernels.library().panel_width() == 7
    assert_nothing_is_left(sources)
    made = library.stat().st_mtime_ns
    assert compiled().stat().st_mtime_ns == made


def test_a_library_that_ends_too_early_kills_nobody(library: Path, sources: Path) -> None:
    """In a process of its own: it would die of SIGBUS."""
    os.truncate(library, 5000)
    with start(sources) as process:
        assert process.communicate() == ("7\n", COMPILES)
    assert process.returncode == 0
    assert_nothing_is_left(sources)


def test_the_digest_can_be_checked_by_hand(library: Path) -> None:
    command = ["sha256sum", "--check", "--strict", library.with_suffix(".sha256").name]
    subprocess.run(command, cwd=library.parent, check=True)


# --- whose the folder is


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asked twice, there is one warning; it names what can be done."""
    monkeypatch.setattr(logging.getLogger("folovllm"), "propagate", True)

    def check(said: str) -> None:
        assert said in (cpu_kernels.unavailable_reason() or "")
        with pytest.raises(RuntimeError, match="the CPU kernels cannot run here"):
            cpu_kernels.library()
        (warning,) = our_warnings(caplog)
        assert said in warning
        assert "torch's operators take their place" in warning
        assert "XDG_CACHE_HOME" in warning
        assert "FOLOVLLM_CPU_KERNELS=no" in warning

    return check


def test_another_users_folder_is_not_loaded_from(
    library: Path, warned: Any, monkeypatch: pytest.MonkeyPatch, sources: Path
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    warned(f"{library.parent} belongs to user {me}, and this is user {me + 1}")
    assert_nothing_is_left(sources)


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_lies_in_a_folder_that_others_could_write_to_is_compiled_again(mode: int, library: Path) -> None:
    """As umask 002 makes it. The library holds what its digest says: whoever wrote the one wrote the other."""
    library.parent.chmod(mode)
    made = library.stat().st_mtime_ns
    assert compiled().stat().st_mtime_ns > made
    assert library.parent.stat().st_mode & 0o777 == 0o755


def test_the_folder_is_made_for_its_user_alone(library: Path) -> None:
    assert library.parent.stat().st_mode & 0o777 == 0o700


def test_without_a_home_folder_the_kernels_are_done_without(
    sources: Path, warned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose user is a number only."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    warned("Could not determine home directory")


def test_a_cache_that_cannot_be_written_compiles_nothing(
    sources: Path, warned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources.parent / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(sources.parent / "file"))  # no user can make a folder in it
    monkeypatch.setattr(cpu_kernels, "_compile", None)
    warned(f"'{sources.parent}/file/folovllm'")
    assert list((sources.parent / "tmp").iterdir()) == []


def test_a_full_disk_leaves_nothing(sources: Path, warned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    warned("No space left on device")
    assert_nothing_is_left(sources, libraries=0)


def test_a_library_that_the_system_will_not_load_is_done_without(
    library: Path, warned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a file system that is mounted noexec."""

    def refuse(path: str) -> None:
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    warned("failed to map segment")


# --- several processes


COUNTING = '#!/bin/sh\ncase "$*" in *-shared*) echo linked >> {log};; esac\nexec {compiler} "$@"\n'


def compiler_that(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch, **places: Path) -> None:
    path = tmp_path / "compiler"
    path.write_text(script.format(compiler=shutil.which("g++"), **places))
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def test_processes_that_start_together_compile_once(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_that(tmp_path, COUNTING, monkeypatch, log=tmp_path / "log")
    processes = [start(sources) for _ in range(3)]
    for process in processes:
        out, said = process.communicate()
        assert out == "7\n"
        assert said in ("", COMPILES)  # one that waits for another to compile says so as well
    assert (tmp_path / "log").read_text() == "linked\n"
    assert_nothing_is_left(sources)


WAITING = """#!/bin/sh
case "$*" in *-shared*) touch "${{TMPDIR}}/of-the-compiler"; echo begun > {begun}; cat {never};; esac
exec {compiler} "$@"
"""


def test_a_process_killed_while_it_compiles_holds_nobody_up_and_leaves_nothing(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It and its compiler, at once, by SIGKILL: nobody can clean up. The next process does."""
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "never")
    with monkeypatch.context() as slow:
        compiler_that(tmp_path, WAITING, slow, begun=tmp_path / "begun", never=tmp_path / "never")
        with start(sources, start_new_session=True) as process:
            assert (tmp_path / "begun").read_text() == "begun\n"  # returns when the compiler has come there
            os.killpg(process.pid, signal.SIGKILL)
    assert list(cache(sources).glob("*.so")) == []
    compiled()
    assert_nothing_is_left(sources)
