"""What a learner sees fits 80 columns, and `watch` checks what is saved and obeys keys."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.cells import cell_len
from rich.console import Console

from milestones.chain import Course
from milestones.labs import watch as watching
from milestones.labs.exercise import load_exercises
from milestones.labs.lab import Lab, open_lab
from milestones.labs.prose import Prose, joined
from milestones.labs.screen import LabConsole
from milestones.labs.start import start
from milestones.labs.words import WORDS, say
from milestones.sources import working_tree
from milestones.spec import LANGUAGES
from tests.milestones.labs_support import lab_course

ROOT = Path(__file__).resolve().parents[2]


def drawn(text: str, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(Prose(text))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_chinese_breaks_between_characters_and_never_before_a_comma() -> None:
    assert drawn("一步要计算若干序列，首尾相接。", 12) == ["一步要计算若", "干序列，首尾", "相接。"]
    assert drawn("一步要计算若，首尾相接。", 12) == ["一步要计算", "若，首尾相", "接。"]


def test_code_stays_whole_and_clings_to_its_punctuation() -> None:
    assert drawn("see `num_free`, then go", 14) == ["see num_free,", "then go"]


def test_a_lists_lines_hang() -> None:
    assert drawn("- one two three four\n- five", 10) == ["- one two", "  three", "  four", "- five"]


def test_lines_are_joined_without_a_space_in_chinese() -> None:
    assert joined("空闲块\n不足，\n`count` 就\nraises it") == "空闲块不足，`count` 就 raises it"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not an archive of it")
def test_every_text_of_every_exercise_fits() -> None:
    course = Course.load(working_tree(ROOT))
    for milestone in course.milestones:
        for e in load_exercises(course.snapshot, milestone.number):
            for page in e.pages.values():
                texts = [page.intro, page.rest, *page.invariants, *page.hints, *page.mistakes.values()]
                wide = [line for text in texts for line in drawn(text, 76) if cell_len(line) > 76]
                assert wide == [], e.id


def test_both_languages_say_everything() -> None:
    for key, said in WORDS.items():
        assert len(said) == len(LANGUAGES), key
        assert all(said), key
        names = [sorted(part.split("}")[0] for part in text.split("{")[1:]) for text in said]
        assert names[0] == names[1], key


class Screen(io.StringIO):
    """Knows when it has been asked to save a file."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if "save to check" in self.getvalue():
            self.asked.set()
        return written


def test_the_keys_of_watch_at_forty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last hint is said to be the last, Ctrl-C in a question leads back to the keys, and the bar is one line."""
    monkeypatch.setattr("milestones.labs.start.remember", lambda root, folder: None)
    keys = iter("hhhpq")

    def wait(lab: Lab, seen: object, *, has_keys: bool) -> str:
        """Meanwhile another command writes into the folder's state."""
        replace(lab, course=f"{lab.course}.").save()
        return next(keys)

    monkeypatch.setattr(watching, "_wait", wait)
    monkeypatch.setattr(watching, "_keys", contextlib.nullcontext)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", Mock(side_effect=KeyboardInterrupt))
    course = lab_course()
    lab = start(tmp_path, course, course.get("m0"), tmp_path / "lab", "en")
    console = Console(file=io.StringIO(), width=40)
    assert watching.watch(console, course, lab, load_exercises(course.snapshot, 0), None, verbose=False) == 0
    assert open_lab(tmp_path, lab.folder).course == lab.course + 5 * "."
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert told.count(say("en", "hint_last").partition(";")[0]) == 1
    assert say("en", "no_answer") in " ".join(told.split())
    assert told.split("\n")[-1] == "░ 0/1  p predict  h hint  n next  q qui"


def test_the_screen_is_as_wide_as_the_terminal_has_become(monkeypatch: pytest.MonkeyPatch) -> None:
    console = LabConsole()
    for columns, width in (("50", 50), ("160", 100)):
        monkeypatch.setitem(os.environ, "COLUMNS", columns)
        assert console.width == width
    monkeypatch.delitem(os.environ, "COLUMNS")
    assert console.width == 80  # a pipe


def test_watch_checks_again_when_a_file_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milestones.labs.start.remember", lambda root, folder: None)
    course = lab_course()
    lab = start(tmp_path, course, course.get("m0"), tmp_path / "lab", "en")
    exercises = load_exercises(course.snapshot, 0)
    screen = Screen()
    console = Console(file=screen, width=80)
    code: list[int] = []
    watcher = threading.Thread(
        target=lambda: code.append(watching.watch(console, course, lab, exercises, None, verbose=False)),
        daemon=True,
    )
    watcher.start()
    path = lab.folder / "folovllm/base.py"
    assert screen.asked.wait(timeout=600)
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index("        # Yours")] + "        return 2 * x\n", encoding="utf-8")
    watcher.join(timeout=600)
    assert code == [0]
    assert "All 1 exercises of M0 are solved." in screen.getvalue()
