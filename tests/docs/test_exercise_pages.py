"""What the pages of exercises run: without torch and pytest, the judge and the grade of `check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones.labs.exercise import Exercise
from milestones.labs.words import say
from milestones.site.live import exercises
from milestones.site.live.exercises import _handed_out, render
from milestones.site.live.trees import EXERCISES, handed_out
from tests.browser.live_support import Driver


def spec(exercise: Exercise, text: str, lang: str = "en") -> dict[str, object]:
    return {"id": exercise.id, "language": lang, "text": text, "seconds": 600}


def test_whatever_needs_nothing_but_python_is_solved_in_its_page() -> None:
    here = {milestone: [id[3:5] for id in _handed_out(milestone)] for milestone in EXERCISES}
    assert here == {
        "m0": ["00", "01", "02"],
        "m1": ["08", "09"],
        "m2": ["00", "01", "02", "03", "05", "06"],
        "m3": ["00", "01", "02", "03", "04", "07"],
    }


@pytest.mark.parametrize("milestone", EXERCISES)
def test_what_is_right_is_accepted_and_each_known_mistake_is_named(milestone: str, tmp_path: Path) -> None:
    specs, expected = [], []
    for exercise, _ in _handed_out(milestone).values():
        own = handed_out(milestone)[exercise.file].decode()
        right = [(text, "solved") for text in (own, *exercise.right.values())]
        for text, name in [*right, *((text, name) for name, text in exercise.wrong.items())]:
            specs.append(spec(exercise, exercise.starting(exercise.with_functions_of(own, text))))
            expected.append((exercise.id, name))
    answers = Driver(tmp_path, f"exercises-{milestone}")(*specs)
    found = [answer["found"]["mistake"] or answer["found"]["outcome"] for answer in answers]
    assert list(zip((each["id"] for each in specs), found, strict=True)) == expected


def test_what_is_not_written_cannot_be_read_or_needs_more(tmp_path: Path) -> None:
    exercise, file = _handed_out("m0")["m0/00-first-token"]
    blank = exercise.starting(file)
    head = blank.partition("        # Yours")[0]
    unread = f"{head}        return = 1\n"
    helper = f"""{head}        return cast(None, later(self))

from typing import cast

def later(metrics):
    return None if metrics.first_token_time is None else metrics.first_token_time - metrics.arrival_time
"""
    stray = "def ttft(self):\n    return 1.0\n"
    specs = [spec(exercise, text, "zh") for text in (blank, unread, helper, stray)]
    first, second, third, fourth = (answer["found"] for answer in Driver(tmp_path, "exercises-m0")(*specs))
    assert (first["outcome"], first["facts"][0][1]) == ("blank", say("zh", "blank"))
    assert fourth["facts"][0][1] == say("zh", "lacks", names="RequestMetrics.ttft")
    assert second["facts"] == [
        ["", say("zh", "syntax", text="invalid syntax"), "red"],
        ["你的代码", "first-token.py:5", "cyan"],
        ["", "return = 1", ""],
    ]
    assert third["outcome"] == "solved"


def test_a_page_has_a_box_or_says_why_it_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python.js"
    monkeypatch.setattr(exercises, "SCRIPT", script)
    assert render("m0/02-fork", "en") == ""  # where npm's package cannot be had
    script.touch()
    assert render("m0/02-fork", "en").startswith('<div class="lab" data-lab="{')
    assert "return replace" not in render("m0/01-transition", "en")  # the answer to a later one in the same file
    assert render("m1/00-gate", "zh") == f"*{exercises.NEEDS_TORCH['zh']}*"
    assert render("m4/00-bytes-of-a-token", "en") == ""
