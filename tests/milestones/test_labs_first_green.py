"""Five minutes to the first green: each milestone begins with one expression, and `watch` waits for it."""

from __future__ import annotations

import ast
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from milestones import cli
from milestones.chain import Course
from milestones.labs import blank
from milestones.labs.exercise import load_exercises
from milestones.sources import working_tree

ROOT = Path(__file__).resolve().parents[2]


class Terminal(io.StringIO):
    """A learner, who does the next thing whenever the screen waits."""

    def __init__(self, acts: list[Callable[[], object]]) -> None:
        super().__init__()
        self.acts = acts

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        if "save to check" in text:
            self.acts.pop(0)()
        return written


def test_the_first_green_is_one_start_one_watch_and_one_expression_and_keys_do_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milestones.labs.lab._registry", lambda root: tmp_path / "labs.json")
    folder = tmp_path / "m3-lab"
    path = folder / "folovllm/core/kv_cache_manager.py"
    raised = re.compile(r" +# Yours to write.*\n( +)raise NotImplementedError\(.*blocks_for.*\)")
    keyboard, terminal = os.openpty()

    def save() -> None:
        text = path.read_text(encoding="utf-8")
        path.write_text(raised.sub(r"\1return -(-num_tokens // self.block_size)", text), encoding="utf-8")

    assert cli.main(["start", "m3", str(folder), "--lang", "en"]) == 0
    screen = Terminal([save, *(lambda key=key: os.write(keyboard, key) for key in (b"c", b"n", b"h", b"q"))])
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setenv("TERM", "xterm")
        assert cli.main(["watch", "--dir", str(folder)]) == 0
    os.close(keyboard)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    shown = [
        "exercise 1 of 8",
        "░░░░░░░░ 0/8",
        "✔ solved",
        "█░░░░░░░ 1/8  c compare",
        "the same as yours",
        "exercise 2 of 8",
    ]
    places = [seen.index(text) for text in [*shown, "Hint 1 of 3"]]
    assert (places, screen.acts) == (sorted(places), [])


@pytest.mark.parametrize("number", range(11))
def test_a_milestone_begins_with_five_minutes(number: int) -> None:
    """One function with one expression, on the milestone's way, before all that takes longer."""
    course = Course.load(working_tree(ROOT))
    first = load_exercises(course.snapshot, number)[0]
    (function,) = first.functions
    body = blank.find(course.tree(number)[first.file].data.decode("utf-8"), function).body
    assert (first.folder[:2], first.minutes, len(body) <= 3, isinstance(body[-1], ast.Return)) == ("00", 5, True, True)
