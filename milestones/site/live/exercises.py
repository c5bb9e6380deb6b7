"""`exercise m0/02-fork`: on the site, a box below it in which the exercise is solved.

It has all that needs no Python: the task, what is handed out, hints, and the messages of mistakes. docs/theme/…/
exercise.js draws it, and keeps in the browser what is written.
"""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape

from markdown import markdown

from milestones.labs.blank import YOURS
from milestones.labs.exercise import Exercise, load_exercises
from milestones.labs.prose import _WIDE
from milestones.labs.prove import blanked_tree
from milestones.site.live import SCRIPT
from milestones.site.live.trees import EXERCISES, handed_out, is_pure
from milestones.sources import File

NEEDS_TORCH = {
    "en": "This one needs torch, so it is solved in your own folder only.",
    "zh": "这道题需要 torch，只能在你自己的目录里做。",
}


_LINE_END = re.compile(f"(?<=[{_WIDE}])\n *(?=[{_WIDE}])")  # in Chinese it is no space


def render(id: str, lang: str) -> str:
    """The HTML of one box, a single line; "" where there is none."""
    milestone = id.partition("/")[0]
    if milestone not in EXERCISES or not SCRIPT.is_file():
        return ""
    if not is_pure(id):
        return f"*{NEEDS_TORCH[lang]}*"
    exercise, file = _handed_out(milestone)[id]
    page = exercise.pages[lang]
    data = {
        "id": id,
        "file": exercise.file,
        "text": _plain(exercise.starting(file)),
        "rest": _plain(file),
        "task": "".join(map(_html, [page.intro, _numbered(page.invariants), page.rest])),
        "hints": [_html(hint) for hint in page.hints],
        "invariants": [_html(text) for text in page.invariants],
        "mistakes": {name: _html(text) for name, text in page.mistakes.items()},
        "figure": exercise.figure,
        "seconds": exercise.seconds,
    }
    return f'<div class="lab" data-lab="{escape(json.dumps(data, ensure_ascii=False))}"></div>'


@cache
def _handed_out(milestone: str) -> dict[str, tuple[Exercise, str]]:
    """Each exercise that is solved here, with its file as `start` hands it out."""
    files = {path: File(data) for path, data in handed_out(milestone).items()}
    exercises = load_exercises(files, int(milestone[1:]))
    here = [exercise for exercise in exercises if is_pure(exercise.id)]
    blanked = blanked_tree(files, here)
    return {exercise.id: (exercise, blanked[exercise.file].data.decode("utf-8")) for exercise in here}


def _plain(text: str) -> str:
    """Without the lines that name a command."""
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() != YOURS)


def _numbered(items: list[str]) -> str:
    return "\n".join(f"{at}. {item}".replace("\n", "\n    ") for at, item in enumerate(items, 1))


def _html(text: str) -> str:
    return markdown(_LINE_END.sub("", text), extensions=["fenced_code"])
