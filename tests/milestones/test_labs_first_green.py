"""Five minutes to the first green: each milestone begins with one expression, and the first check waits for it."""

from __future__ import annotations

import ast
import io
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
    """A learner who writes the solution's expression when the screen asks for a file to be saved."""

    def __init__(self, save: Callable[[], object]) -> None:
        super().__init__()
        self.save = save

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "save to check" in text:
            self.save()
        return super().write(text)


def test_the_first_green_is_one_start_one_check_and_one_expression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a terminal the first check watches until it is green, so nothing is typed but the expression."""
    monkeypatch.setattr("milestones.labs.lab._registry", lambda root: tmp_path / "labs.json")
    folder = tmp_path / "m3-lab"
    path = folder / "folovllm/core/kv_cache_manager.py"
    raised = re.compile(r" +# Yours to write.*\n( +)raise NotImplementedError\(.*blocks_for.*\)")

    def save() -> None:
        text = path.read_text(encoding="utf-8")
        path.write_text(raised.sub(r"\1return -(-num_tokens // self.block_size)", text), encoding="utf-8")

    assert cli.main(["start", "m3", str(folder), "--lang", "en"]) == 0
    screen = Terminal(save)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stdin", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert cli.main(["watch", "--dir", str(folder)]) == 0
    seen = screen.getvalue()
    assert (seen.count("save to check"), seen.count("✔ solved"), "exercise 1 of" in seen) == (1, 1, True)


@pytest.mark.parametrize("number", range(11))
def test_a_milestone_begins_with_five_minutes(number: int) -> None:
    """One function with one expression, on the milestone's way, before all that takes longer."""
    course = Course.load(working_tree(ROOT))
    first = load_exercises(course.snapshot, number)[0]
    (function,) = first.functions
    body = blank.find(course.tree(number)[first.file].data.decode("utf-8"), function).body
    assert (first.folder[:2], first.minutes, len(body) <= 3, isinstance(body[-1], ast.Return)) == ("00", 5, True, True)
