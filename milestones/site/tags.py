"""The tag of an interview question: how far from the beaten track it is asked.

    <details class="question advanced" markdown="1"><summary>7. Why does ... <em>advanced</em></summary>

The tag is a class of the box, the same word in both languages, and its name in the page's language ends the title.
"""

from __future__ import annotations

import re

TAGS: dict[str, dict[str, str]] = {
    "everywhere": {"en": "asked everywhere", "zh": "常考"},
    "advanced": {"en": "advanced", "zh": "进阶"},
    "project": {"en": "this project", "zh": "本项目"},
}

_QUESTION = re.compile(
    r'<details class="question(?: (?P<tag>[\w-]+))?" markdown="1"><summary>.*?(?: <em>(?P<said>[^<]*)</em>)?</summary>$'
)


def tag_of(line: str) -> tuple[str, str] | None:
    """The tag of a question's line and what it is called there, "" where there is none; None for any other line."""
    match = _QUESTION.match(line)
    return None if match is None else (match["tag"] or "", match["said"] or "")
