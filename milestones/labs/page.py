"""Reads an exercise's page, en.md or zh.md: what it asks, hints, questions to predict, and the mistakes it knows.

    # Title
    why one writes this
    ## Task          numbered invariants, then what need not be done
    ## Hints         three, numbered
    ## Predict       ### question, options a. b. c., "Answer: b." with the reason
    ## Mistakes      ### name of a wrong solution, then the message that helps

A Chinese page has its headings in Chinese: 任务, 提示, 预测, 常见错误, and 答案：b。
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from milestones.spec import MilestoneError

HEADINGS = {"en": ("Task", "Hints", "Predict", "Mistakes"), "zh": ("任务", "提示", "预测", "常见错误")}
NUM_HINTS = 3
_ITEM = re.compile(r"(\d+)\. +(.*)")
_FENCE = re.compile(r" *(?:\d+\. +)?```")  # a hint may begin with one
_OPTION = re.compile(r"([a-e])\. +(.*)")
_ANSWER = re.compile(r"(?:Answer: *|答案：)([a-e])(?:\.|。)\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Question:
    """To be answered before coding."""

    text: str
    options: dict[str, str]  # letter -> text
    answer: str  # a letter
    reason: str


@dataclass(frozen=True)
class Page:
    """One language's text of an exercise; all of it is Markdown."""

    title: str
    intro: str
    invariants: list[str]
    rest: str  # of the task: what need not be done
    hints: list[str]
    questions: list[Question]
    mistakes: dict[str, str]  # name -> message


def parse_page(where: str, text: str, language: str) -> Page:
    """Read one page; every error starts with `where`."""
    head, *parts = _split(text.replace("\r\n", "\n"), "## ")
    title, _, intro = head.strip().partition("\n")
    if not title.startswith("# "):
        raise MilestoneError(f"{where}: must begin with `# ` and a title, got {title!r}")
    sections = dict(_cut(part) for part in parts)
    names = HEADINGS[language]
    if tuple(sections) != names:
        wanted = ", ".join(f"## {name}" for name in names)
        raise MilestoneError(f"{where}: must have the sections {wanted} in this order, got {', '.join(sections)}")
    task, hints, predict, mistakes = (sections[name] for name in names)
    invariants, rest = _numbered(f"{where}: {names[0]}", task)
    hint_list, left = _numbered(f"{where}: {names[1]}", hints)
    if len(hint_list) != NUM_HINTS or left:
        raise MilestoneError(f"{where}: {names[1]} must be {NUM_HINTS} numbered hints and nothing else")
    questions = [_question(f"{where}: {names[2]}", *_cut(part)) for part in _split(predict, "### ")[1:]]
    if not questions:
        raise MilestoneError(f"{where}: {names[2]} must have at least one `### question`")
    messages = dict(_cut(part) for part in _split(mistakes, "### ")[1:])
    if empty := [name for name, message in messages.items() if not message]:
        raise MilestoneError(f"{where}: {names[3]}: {empty[0]!r} has no message")
    return Page(title[2:].strip(), intro.strip(), invariants, rest, hint_list, questions, messages)


def _split(text: str, mark: str) -> list[str]:
    """Cut before each line that begins with `mark`, code blocks left whole; the mark is dropped."""
    pieces, fenced = [""], False
    for line in text.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        if line.startswith(mark) and not fenced:
            pieces.append("")
            line = line[len(mark) :]
        pieces[-1] += line + "\n"
    return pieces


def _cut(part: str) -> tuple[str, str]:
    first, _, body = part.partition("\n")
    return first.strip(), body.strip()


def _numbered(where: str, text: str) -> tuple[list[str], str]:
    """The items of a list `1. …`, `2. …`, and what follows the list. Further lines of an item are indented."""
    items: list[str] = []
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if found := _ITEM.match(line):
            if int(found[1]) != len(items) + 1:
                raise MilestoneError(f"{where}: expected item {len(items) + 1}, got {line!r}")
            items.append(found[2])
        elif items and (not line or line.startswith("   ")):
            items[-1] += "\n" + line[3:]
        elif items:
            return [item.strip() for item in items], "\n".join(lines[at:]).strip()
        elif line:
            raise MilestoneError(f"{where}: must begin with a numbered list, got {line!r}")
    if not items:
        raise MilestoneError(f"{where}: must have a numbered list")
    return [item.strip() for item in items], ""


def _question(where: str, text: str, body: str) -> Question:
    options: dict[str, str] = {}
    rest: list[str] = []
    for line in body.split("\n"):
        if not rest and (found := _OPTION.match(line)):
            options[found[1]] = found[2].strip()
        elif line or rest:
            rest.append(line)
    answer = _ANSWER.fullmatch("\n".join(rest).strip())
    if len(options) < 2 or list(options) != list("abcde")[: len(options)]:
        raise MilestoneError(f"{where}: {text!r} must have options `a. …`, `b. …`, one line each")
    if answer is None or answer[1] not in options or not answer[2].strip():
        raise MilestoneError(f"{where}: {text!r} must end with `Answer: b.` (答案：b。) and the reason")
    return Question(text, options, answer[1], answer[2].strip())
