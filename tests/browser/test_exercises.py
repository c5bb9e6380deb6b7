"""An exercise in its page: judged as `check` judges it, kept in the browser, and taken along into a folder."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from milestones import cli
from milestones.chain import Course
from milestones.labs.check import Checked
from milestones.labs.exercise import Exercise, load_exercises, solved_tree
from milestones.labs.grade import grade
from milestones.labs.lab import Lab
from milestones.labs.screen import _body
from milestones.site.live.trees import EXERCISES, handed_out, is_pure
from milestones.site.source import ROOT
from milestones.sources import File, working_tree
from milestones.trees import write_tree
from tests.browser.test_live import alive  # noqa: F401
from tests.browser.test_pages import local

pytestmark = pytest.mark.browser

HERE = [
    f"{milestone}/{path.name}"
    for milestone in EXERCISES
    for path in sorted((ROOT / "milestones/labs" / milestone).glob("[0-9]*"))
    if is_pure(f"{milestone}/{path.name}")
]


@cache
def course() -> Course:
    return Course.load(working_tree(ROOT))


@cache
def solved(milestone: str) -> tuple[dict[str, Exercise], dict[str, File]]:
    exercises = load_exercises(course().snapshot, int(milestone[1:]))
    return {each.id: each for each in exercises}, dict(solved_tree(course(), int(milestone[1:]), exercises))


def told_by_check(exercise: Exercise, folder: Path, text: str, lang: str) -> str:
    """What `check` prints in a folder where all others are solved, and this one is `text`."""
    milestone = f"m{exercise.milestone}"
    tree = {path: file for path, file in solved(milestone)[1].items() if path.startswith("folovllm/")}
    whole = exercise.written_into(exercise.blanked(tree[exercise.file].data.decode()), text)
    write_tree({**tree, exercise.file: File(whole.encode())}, folder)
    found = grade(exercise, folder, tree, language=lang)
    console = Console(width=2000, file=io.StringIO(), color_system=None)
    for part in _body(Lab(folder, milestone, lang, "", ""), Checked(exercise, found), verbose=False):
        console.print(part)
    return without_spaces(console.file.getvalue())  # type: ignore[attr-defined]


def without_spaces(text: str) -> str:
    """A terminal and a page break their lines elsewhere."""
    return "".join(text.split())


def opened(page: Any, site: Path, exercise: Exercise, lang: str) -> tuple[Any, list[str]]:
    """The exercise's box, unfolded, and a list in which what goes wrong appears."""
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("request", lambda r: None if local(r.url) else wrong.append(f"asks for {r.url}"))
    page.goto((site / lang / exercise.note).with_suffix(".html").as_uri())
    number = page.evaluate(
        "id => [...document.querySelectorAll('.lab')].findIndex(b => b.lab.data.id === id)", exercise.id
    )
    box = page.locator(".lab").nth(number)
    box.locator("summary").first.click()
    box.evaluate("box => Object.assign(box.lab, { seconds: 600, patience: 600 })")
    return box, wrong


def told_by_page(box: Any, text: str) -> str:
    box.locator("textarea").fill(text)
    box.evaluate("box => box.lab.result.removeAttribute('data-outcome')")
    box.get_by_role("button").first.click()
    box.locator(".lab__result[data-outcome]").wait_for()
    said = "box => { box.querySelector('.lab__figure')?.remove(); return box.lab.result.innerText; }"
    return without_spaces(box.evaluate(said))


@pytest.mark.parametrize(("id", "lang"), [(id, "en" if at % 2 else "zh") for at, id in enumerate(HERE)])
def test_a_page_says_what_check_says(alive: Path, open_page: Any, tmp_path: Path, id: str, lang: str) -> None:  # noqa: F811
    """Of a right solution, a wrong one, and one that never ends."""
    exercise = solved(id.partition("/")[0])[0][id]
    own = handed_out(f"m{exercise.milestone}")[exercise.file].decode()
    right, blank = exercise.starting(own), exercise.starting(exercise.blanked(own))
    mistaken = exercise.starting(exercise.with_functions_of(own, next(iter(exercise.wrong.values()))))
    lines = [line.partition("raise NotImpl") for line in blank.splitlines()]
    looping = "\n".join(f"{before}while True: pass" if raises else before for before, raises, _ in lines)
    page = open_page(390 if lang == "en" else 1440)
    box, wrong = opened(page, alive, exercise, lang)
    for name, text in {"right": right, "wrong": mistaken}.items():
        assert told_by_page(box, text) == told_by_check(exercise, tmp_path / name, text, lang)
    box.evaluate("box => { box.lab.seconds = 1; }")
    assert told_by_page(box, looping) == told_by_check(replace(exercise, seconds=1), tmp_path / "loop", looping, lang)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert wrong == []


def test_what_was_written_is_kept_and_taken_along(
    alive: Path,  # noqa: F811
    open_page: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By keyboard, over a reload, and from a file into M1's folder."""
    exercise = solved("m0")[0]["m0/02-fork"]
    page = open_page()
    box, wrong = opened(page, alive, exercise, "en")
    code = box.locator("textarea")
    code.press("Control+End")
    code.fill(code.input_value().partition("        raise NotImpl")[0] + "        import copy  # mine")
    code.press("Control+End")
    code.press("Enter")
    code.press_sequentially("if True:")
    code.press("Enter")
    code.press_sequentially("return replace(copy.deepcopy(self), seq_id=new_seq_id)")
    code.press("Control+Enter")
    box.locator(".lab__result[data-outcome=wrong]").wait_for()
    assert "Copy the lists, keep what is in them." in box.inner_text()
    box.get_by_role("button", name="A hint").click()
    box.get_by_role("button", name="A hint").click()
    assert box.locator(".lab__hints li").count() == 2
    text = exercise.right["copies-first"].replace("return child", "return child  # mine")
    code.fill(text)
    box.get_by_role("button", name="Check").click()
    box.locator(".lab__result[data-outcome=solved]").wait_for()
    page.reload()
    box = page.locator(".lab").nth(2)
    assert box.locator("textarea").input_value() == text
    assert (box.locator(".lab__hints li").count(), "✔" in box.locator("summary").first.inner_text()) == (2, True)

    with page.expect_download() as taken:
        box.get_by_role("button", name="Take along").click()
    file = tmp_path / taken.value.suggested_filename
    taken.value.save_as(file)
    assert json.loads(file.read_text()) == {"exercises": {"m0/02-fork": {"text": text, "solved": True}}}
    monkeypatch.setattr("milestones.labs.lab._registry", lambda root: tmp_path / "labs.json")
    assert cli.main(["start", "m1", str(tmp_path / "m1-lab"), "--from", str(file), "--lang", "en"]) == 0
    assert "return child  # mine" in (tmp_path / "m1-lab/folovllm/request.py").read_text()
    assert wrong == []
