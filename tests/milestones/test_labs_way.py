"""The learner's way through a folder: as a person types it, in places that are not convenient."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from milestones import cli
from milestones.chain import Course
from milestones.labs.exercise import load_exercises
from milestones.sources import IDENTITY, git, working_tree
from tests.milestones.labs_support import FOLDER, OPEN, lab_files

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shallow clone of the tiny course, of somebody who has told git no name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    origin = tmp_path / "origin"
    for path, text in lab_files().items():
        target = origin / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    git(origin, "init", "--quiet", "--template=")
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "--message", "all", env=IDENTITY)
    root = tmp_path / "克隆 clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", origin.as_uri(), str(root))
    monkeypatch.setattr(cli, "repository_root", lambda: root)
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def lab(clone: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "我的 lab"
    assert cli.main(["start", "m0", str(folder), "--lang", "en"]) == 0
    return folder


def write(lab: Path, body: str) -> None:
    path = lab / "folovllm/base.py"
    text = path.read_text(encoding="utf-8")
    start = text.index('"""Twice `x`."""') + len('"""Twice `x`."""')
    path.write_text(f"{text[:start]}\n        {body}\n", encoding="utf-8")


def state(lab: Path) -> dict[str, object]:
    return json.loads((lab / ".folovllm/lab.json").read_text(encoding="utf-8"))["exercises"]["01-twice"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main([*words])
    seen = capsys.readouterr()
    return code, seen.out + seen.err


def test_the_folder_is_a_clean_repository_with_one_commit(lab: Path) -> None:
    assert git(lab, "status", "--porcelain") == b""
    assert git(lab, "log", "--format=%s") == b"M0: Ground: exercises\n"
    assert "raise NotImplementedError" in (lab / "folovllm/base.py").read_text(encoding="utf-8")


def test_from_blank_to_solved(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "check")
    assert ["minutes", "about", "5"] in [line.split() for line in text.splitlines()]
    assert (code, "1. double(x) is twice x." in text, "folovllm/base.py:2  Base.double" in text) == (1, True, True)
    code, text = run(capsys, "progress")
    assert (code, "0 of 1 solved · about 15 minutes to go" in text) == (0, True)
    write(lab, "return x * x")
    code, text = run(capsys, "check")
    assert code == 1
    assert [line.split() for line in text.splitlines() if "expected" in line or "got" in line] == [
        ["expected", "6"],
        ["got", "9"],
    ]
    assert "That is the square." in text
    write(lab, "return 2 * x")
    code, text = run(capsys, "check")
    assert (code, "solved" in text, "All 1 exercises of M0 are solved." in text) == (0, True, True)
    code, text = run(capsys, "progress")
    assert (code, "1 of 1 solved" in text) == (0, True)


def test_hint_and_check_need_no_git(lab: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    write(lab, "return x + x")
    monkeypatch.setenv("PATH", str(lab))
    assert "Think." in run(capsys, "hint")[1]
    assert run(capsys, "check")[0] == 0


def test_after_green_the_other_right_solutions_stand_below_ones_own(
    clone: Path, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = clone / FOLDER / "right/shifted-left.py"
    right.parent.mkdir()
    right.write_text("class Base:\n    def double(self, x: int) -> int:\n        return x << 1\n")
    write(lab, "return 2 * x")
    code, text = run(capsys, "compare")
    assert (code, "compare is for what is solved, and twice is not" in text) == (2, True)
    assert "python -m milestones compare twice" in run(capsys, "check")[1]
    text = run(capsys, "compare")[1]
    assert text.index("return 2 * x") < text.index("return x + x") < text.index("shifted left") < text.index("x << 1")
    assert "solution seen" not in run(capsys, "progress")[1]


def test_without_pytest_one_line_says_how_to_install_it(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"python -m pip install -c '{clone}/constraints.txt' -e '{clone}[test]'"
    monkeypatch.setattr("milestones.labs.commands.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pytest", None)
    code, text = run(capsys, "start", "m0", str(tmp_path / "lab"), "--lang", "en")
    assert (code, text.splitlines()[-1]) == (0, f"`check` needs pytest: {command}")
    monkeypatch.chdir(tmp_path / "lab")
    assert run(capsys, "check") == (2, f"error: this command needs pytest: {command}\n")


def test_the_figure_of_an_open_task_stands_beside_ours_and_the_best(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, text in OPEN.items():
        (clone / FOLDER / path).parent.mkdir(exist_ok=True)
        (clone / FOLDER / path).write_text(text, encoding="utf-8")
    folder = tmp_path / "lab"
    assert run(capsys, "start", "m0", str(folder), "--lang", "en")[0] == 0
    file = folder / "folovllm/mine/base.py"
    blank, end = file.read_text(encoding="utf-8").split("        # Yours")
    assert "NotImplementedError" in end
    for body, code, figure in (
        ("x * x", 1, "measured 9 · ours 12 · best known 30 · higher is better\n  not as good as ours\n"),
        ("12", 0, "measured 12 · ours 12 · best known 30 · higher is better\n  as good as ours\n"),
        ("21", 0, "better than ours\n  yours so far: 12, 21\n"),
        ("30", 0, "the best known figure reached\n  yours so far: 12, 21, 30\n"),
        ("31", 0, "better than the best known: docs/en/records.md says"),
    ):
        file.write_text(f"{blank}        return {body}\n", encoding="utf-8")
        done, text = run(capsys, "check", "1")
        assert (done, figure in text) == (code, True), text
    assert "another: best" in run(capsys, "compare")[1]
    assert "return 12" in run(capsys, "solution")[1]


def test_in_chinese(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(lab, "return x * x")
    code, text = run(capsys, "check", "--lang", "zh")
    assert (code, "这是平方。" in text, "double(x) 是 x 的两倍。" in text) == (1, True, True)
    assert ["期望", "6"] in [line.split() for line in text.splitlines()]
    assert "下一步" in run(capsys, "check")[1]  # it is kept


def test_three_hints_then_the_solution(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = [run(capsys, "hint")[1] for _ in range(4)]
    assert ["Think." in shown[0], "Add." in shown[1], "return x + x" in shown[2]] == [True, True, True]
    assert "Hint 3 of 3" in shown[3]
    assert "return x + x" in run(capsys, "solution")[1]
    write(lab, "return 1")
    run(capsys, "solution", "--apply")
    assert run(capsys, "check")[0] == 0
    assert "solution applied" in run(capsys, "progress")[1]
    assert "return 1" in (lab / ".folovllm/kept/01-twice/1-before-solution.py").read_text(encoding="utf-8")


def test_a_prediction_is_answered_after_it_was_made(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "predict")
    assert (code, "What is twice 3?" in text, "3 + 3" in text) == (0, True, False)
    assert run(capsys, "predict", "x")[0] == 2
    code, text = run(capsys, "predict", "a")
    assert ("a is not it; b is." in text, "3 + 3." in text) == (True, True)
    assert state(lab)["predictions"] == ["a"]


def test_edited_tests_are_told_and_change_nothing(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "tests/m0/test_base.py").write_text("def test_double(): ...\n")
    write(lab, "return 1")
    code, text = run(capsys, "check")
    assert (code, "tests/m0/test_base.py changed; the grade comes from the course's own tests" in text) == (1, True)


def test_files_outside_the_exercises_are_told_and_taken_as_handed_out(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(lab, "return x + x")
    (lab / "folovllm/__init__.py").write_text("raise ValueError\n")
    code, text = run(capsys, "check")
    assert (code, "folovllm/__init__.py changed; the exercises are elsewhere" in " ".join(text.split())) == (0, True)


def test_what_was_solved_and_changes_is_open_again(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(lab, "return x + x")
    assert run(capsys, "check")[0] == 0
    write(lab, "return x - x")
    assert "changed since" in run(capsys, "progress")[1]
    assert run(capsys, "check")[0] == 1


def test_the_folder_itself_has_the_tool(lab: Path) -> None:
    """`python -m milestones` in the folder is the clone's: here the clone is this repository."""
    config = lab / ".folovllm/lab.json"
    config.write_text(json.dumps({**json.loads(config.read_text(encoding="utf-8")), "repository": str(ROOT)}))
    done = subprocess.run(
        [sys.executable, "-m", "milestones", "hint", "--help"], cwd=lab, capture_output=True, text=True, check=True
    )
    assert "one hint more" in done.stdout or "NAME" in done.stdout
    config.write_text(json.dumps({**json.loads(config.read_text(encoding="utf-8")), "repository": "/gone"}))
    gone = subprocess.run([sys.executable, "-m", "milestones", "check"], cwd=lab, capture_output=True, text=True)
    assert (gone.returncode, "the clone of FoloVLLM is no longer at /gone" in gone.stderr) == (1, True)


def change_course(clone: Path, path: str, old: str, new: str) -> None:
    target = clone / path
    text = target.read_text(encoding="utf-8")
    assert old in text
    target.write_text(text.replace(old, new), encoding="utf-8")


def test_update_brings_fixes_and_keeps_what_was_written(
    clone: Path, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(lab, "return x + x")
    assert "nothing to update" in run(capsys, "update")[1]
    change_course(clone, "folovllm/base.py", "class Base:", "FIXED = True\n\n\nclass Base:")
    change_course(clone, "docs/en/m0/index.md", "# Ground", "# The ground")
    assert "the course has moved on" in run(capsys, "check")[1]
    code, text = run(capsys, "update")
    assert (code, "merged with your changes" in text, "docs/en/m0/index.md" in text) == (0, True, True)
    mine = (lab / "folovllm/base.py").read_text(encoding="utf-8")
    assert ("FIXED = True" in mine, "return x + x" in mine) == (True, True)
    assert "moved on" not in run(capsys, "check")[1]
    assert "nothing to update" in run(capsys, "update")[1]


def test_update_never_writes_over_the_learners_lines(
    clone: Path, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = lab / "folovllm/__init__.py"
    readme.write_text("VERSION = 'mine'\n")
    (clone / "milestones/m0/folovllm/__init__.py").write_text("VERSION = 'theirs'\n")
    code, text = run(capsys, "update")
    assert (code, "yours kept" in text, readme.read_text()) == (1, True, "VERSION = 'mine'\n")
    assert (lab / ".folovllm/update/folovllm/__init__.py").read_text() == "VERSION = 'theirs'\n"
    assert "yours kept" in run(capsys, "update")[1]  # until they agree
    readme.write_text("VERSION = 'theirs'\n")
    assert run(capsys, "update")[0] == 0


def test_without_a_folder_one_is_told_how_to_start(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check") == (2, "error: no exercises have been started: python -m milestones start m0 DIR\n")
    assert run(capsys, "start", "m1", "x")[0] == 2  # it has no exercises


def test_an_unknown_exercise_is_told_with_the_known(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "check", "zwei", "--dir", str(lab))
    assert (code, text) == (2, "error: no exercise is called 'zwei'; there are 01-twice\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(14))
def test_the_way_through_the_first_exercise_of_a_milestone(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start, fail, hint, solve by the solution, green. `make labs` proves the other exercises."""
    name, language = f"m{number}", ("en", "zh")[number % 2]
    exercise = load_exercises(Course.load(working_tree(ROOT)).snapshot, number)[0]
    folder = tmp_path / f"{name} 实验"
    monkeypatch.setattr("milestones.labs.lab._registry", lambda root: tmp_path / "labs.json")
    place = ["--dir", str(folder)]
    assert cli.main(["start", name, str(folder), "--lang", language]) == 0
    assert run(capsys, "check", *place)[0] == 1
    hint = re.sub(r"[\s`*]", "", exercise.pages[language].hints[0])
    assert hint[:40] in re.sub(r"\s", "", run(capsys, "hint", *place)[1])
    assert run(capsys, "solution", exercise.folder, "--apply", *place)[0] == 0
    code, text = run(capsys, "check", exercise.folder, *place)
    assert code == 0, text


def test_reset_empties_the_functions_and_keeps_what_was_written(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(lab, "return x * x")
    code, text = run(capsys, "reset", "1")
    assert (code, "As handed out: folovllm/base.py" in text) == (0, True)
    assert "raise NotImplementedError" in (lab / "folovllm/base.py").read_text(encoding="utf-8")
    assert "x * x" in (lab / ".folovllm/kept/01-twice/1-before-reset.py").read_text(encoding="utf-8")
    code, text = run(capsys, "reset")
    assert (code, "reset needs the NAME of an exercise" in text) == (2, True)


def test_no_copy_is_written_over_and_each_comes_back(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "restore")[1].startswith("no copies")
    write(lab, "return 'first'")
    run(capsys, "reset", "1")
    run(capsys, "reset", "1")  # of what is blank
    write(lab, "return 'second'")
    run(capsys, "solution", "--apply")
    run(capsys, "solution", "--apply")  # of what is the solution
    code, text = run(capsys, "restore", "1")
    assert (code, re.findall(r"^01-twice  (\d)", text, re.M)) == (0, ["1", "2", "3", "4"])
    for number, said in ((1, "'first'"), (3, "'second'"), (1, "'first'")):
        assert run(capsys, "restore", "1", str(number))[0] == 0
        assert f"return {said}" in (lab / "folovllm/base.py").read_text(encoding="utf-8")
    assert run(capsys, "restore", "1", "9")[0] == 2


def test_a_conflict_keeps_the_rest_of_an_update(clone: Path, lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line that both changed is the learner's; the other fix of the same file arrives, and the note stays."""
    file = lab / "folovllm/base.py"
    file.write_text("MINE = True\n\n\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    write(lab, "return x + x")
    change_course(clone, "folovllm/base.py", "class Base:", "THEIRS = True\n\n\nclass Base:")
    change_course(clone, "folovllm/base.py", "    def", "    FIXED = True\n\n    def")
    code, text = run(capsys, "update")
    mine = file.read_text(encoding="utf-8")
    assert (code, "yours kept" in text) == (1, True), text
    assert ("MINE" in mine, "THEIRS" in mine, "return x + x" in mine) == (True, False, True)
    assert "FIXED" in mine
    assert "moved on" in run(capsys, "check")[1]


def test_the_folder_that_is_taken_is_named_where_one_is_in_no_lab(
    lab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"no lab here; taken is the one used last: {lab}" in run(capsys, "check")[1]


def test_ctrl_c_ends_a_command_in_one_line(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("milestones.labs.check.grade", interrupted)
    code, text = run(capsys, "check")
    assert (code, text.splitlines()[-1]) == (130, "interrupted")


@pytest.mark.parametrize("damage", ["delete", "def ("])
def test_a_file_that_is_gone_or_broken_comes_back(lab: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = lab / "folovllm/base.py"
    before = file.read_bytes()
    if damage == "delete":
        file.unlink()
        assert "python -m milestones reset twice" in " ".join(run(capsys, "check")[1].split())
    else:
        file.write_text(damage, encoding="utf-8")
    assert run(capsys, "reset", "twice")[0] == 0
    assert file.read_bytes() == before


def test_a_message_is_shown_for_its_mistake_alone(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for body, is_shown in (("return x * x", True), ("return 7", False)):
        write(lab, body)
        assert ("That is the square." in run(capsys, "check")[1]) is is_shown
