"""The tag of an interview question: how far from the beaten track it is asked.

    ??? question advanced "7. Why does ..."

The tag is one more class of the box, so the page stays plain Markdown and says the same word in both languages. The
build ends the title with the tag's name in the page's language.
"""

from __future__ import annotations

import re

TAGS: dict[str, dict[str, str]] = {
    "everywhere": {"en": "asked everywhere", "zh": "常考"},
    "advanced": {"en": "advanced", "zh": "进阶"},
    "project": {"en": "this project", "zh": "本项目"},
}

_QUESTION = re.compile(
    r'^(?P<head>[ \t]*\?\?\?\+?[ \t]+question(?:[ \t]+(?P<tag>[\w-]+))?[ \t]+)"(?P<title>.*)"[ \t]*$'
)


def tag_of(line: str) -> str | None:
    """The tag of a question's line, "" where it has none; None for any other line."""
    match = _QUESTION.match(line)
    return None if match is None else match["tag"] or ""


def with_badge(line: str, lang: str) -> str:
    """The line with its tag shown at the end of the title; any other line as it is."""
    match = _QUESTION.match(line)
    if match is None or match["tag"] not in TAGS:
        return line
    badge = f"<span class='folo-tag folo-tag--{match['tag']}'>{TAGS[match['tag']][lang]}</span>"
    return f'{match["head"]}"{match["title"]} {badge}"'
