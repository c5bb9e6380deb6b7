"""The commands as a person types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from milestones import cli, report
from milestones.sources import git

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_the_tiny_course(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "repository_root", lambda: repository)
    monkeypatch.setattr(report.console, "_width", 120)


def test_list_shows_each_milestone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "m0  Ground" in printed
    assert "引擎" in printed


def test_the_help_has_every_command_once_in_three_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    groups = re.findall(r"^(\w+):\n((?:  .+\n)+)", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in groups] == ["options", "learn", "read", "make"]
    listed = [line.split()[0] for _, lines in groups[1:] for line in lines.splitlines()]
    (commands,) = (a.choices for a in cli.build_parser()._actions if isinstance(a.choices, dict))
    assert sorted(listed) == sorted(commands)


def test_diff_shows_the_engine_and_with_a_dot_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "m0", "m1"]) == 0
    engine = capsys.readouterr().out
    assert {line.split("/")[1] for line in engine.splitlines() if line.startswith("+++ b/")} == {"folovllm"}
    assert cli.main(["diff", "m0", "m1", "."]) == 0
    assert "+++ b/tests/m1/test_engine.py" in capsys.readouterr().out


def test_diff_prints_a_patch_and_stat_prints_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "m0", "m1", "folovllm/__init__.py"]) == 0
    assert capsys.readouterr().out.endswith("-VERSION = 0\n+VERSION = 1\n")
    assert cli.main(["diff", "m0", "m1", "folovllm/engine.py", "--stat"]) == 0
    assert "+5" in capsys.readouterr().out


def test_tag_makes_the_tags_and_warns_of_what_is_not_in_them(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "folovllm/engine.py").write_text("changed\n")
    assert cli.main(["tag"]) == 0
    assert "uncommitted: folovllm/engine.py" in capsys.readouterr().out
    assert git(repository, "tag", "--list") == b"m0\nm1\n"
    assert git(repository, "show", "m1:folovllm/engine.py").startswith(b"from folovllm.base")


def test_tag_refuses_a_head_with_problems(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "folovllm/stray.py").write_text("")
    git(repository, "add", "--all")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "stray")
    assert cli.main(["tag"]) == 2
    assert "folovllm/stray.py: belongs to no milestone" in capsys.readouterr().err
    assert git(repository, "tag", "--list") == b""


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("dangling", "DIR must be a folder, but {} is a link to nothing"),
        ("file", "DIR must be a folder, but {} is a file"),
        ("file/below", "DIR must be a folder that can be written to, got {}: Not a directory"),
    ],
)
def test_a_place_that_is_no_folder_is_one_line_and_exit_code_2(
    place: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    folder = tmp_path / place
    assert cli.main(["checkout", "m0", str(folder)]) == 2
    assert capsys.readouterr().err == f"error: {text.format(folder)}\n"


def test_a_place_where_nothing_may_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert cli.main(["checkout", "m0", str(tmp_path / "out")]) == 2
    text = f"error: DIR must be a folder that can be written to, got {tmp_path / 'out'}: Read-only file system\n"
    assert capsys.readouterr().err == text


def test_a_closed_stdout_and_a_reader_that_leaves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "milestones", "diff", "m0", "m1", "folovllm/__init__.py"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert (closed.returncode, closed.stderr) == (2, "error: stdout is closed: there is nowhere to print to\n")
    read_end, write_end = os.pipe()
    os.close(read_end)
    gone = subprocess.run(command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=600)
    os.close(write_end)
    assert (gone.returncode, gone.stderr) == (0, "")


def test_verify_ends_with_a_table_and_an_exit_code(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "--static"]) == 0
    assert "m1  passed" in capsys.readouterr().out
    (repository / "folovllm/base.py").write_text("Engine = 1\n")
    assert cli.main(["verify", "--static"]) == 1
    printed = capsys.readouterr().out
    assert "error: m0: folovllm/base.py:1: Engine belongs to a later milestone" in printed
    assert "m0  failed" in printed


def test_verify_names_the_files_that_do_not_parse(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "folovllm/base.py").write_text("A = 1\n<<<<<<< folovllm/base.py\n")
    assert cli.main(["verify", "--static"]) == 2
    assert capsys.readouterr().err == "error: folovllm/base.py:2 does not parse: invalid syntax\n"


def test_bad_input_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["read", "m9"]) == 2
    assert capsys.readouterr().err == "error: no milestone is called 'm9'; there are m0, m1\n"


def test_tag_and_checkout_run_where_no_package_is_installed(repository: Path, tmp_path: Path) -> None:
    """-S leaves site-packages out, as in a fresh clone with the system's Python."""
    script = (
        "import sys; from pathlib import Path; from milestones import cli; "
        f"codes = [cli.main(args.split(), Path({str(repository)!r})) for args in sys.argv[1:]]; "
        "assert 'rich' not in sys.modules; print(codes)"
    )
    commands = ["tag", f"checkout m0 {tmp_path / 'out'}", "diff m0 m1 folovllm", "list"]
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, *commands], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 2]"
    assert done.stderr.startswith("error: this command needs rich")
