"""Draws an exercise's Markdown in a terminal: paragraphs, lists, `code`, **strong**, fenced code.

rich breaks lines at spaces only, and Chinese has none: a line would end wherever the last English word stood. Here a
line may also end between two Chinese characters, but never before a comma or behind an opening bracket.
"""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.syntax import Syntax
from rich.text import Text

THEME = "ansi_dark"  # the terminal's own colours
CODE = "cyan"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_WIDE = "\u2e80-\u303f\u3040-\u9fff\uff00-\uffef"
_CLOSING = "，。；：！？、）」』】》”’…,.;:!?)]"
_OPENING = "（「『【《“‘(["
_ATOM = re.compile(f"[{_WIDE}]|[ \n]+|[^ \n{_WIDE}]+")
_BULLET = re.compile(r"^( *)([-*]|\d+\.) +")

Piece = tuple[str, str]  # text, style


def python(code: str, *, wrap: bool = True) -> Syntax:
    return Syntax(code, "python", theme=THEME, background_color="default", word_wrap=wrap)


def joined(text: str) -> str:
    """A paragraph's lines as one: no space where Chinese goes on after a line's end."""
    chinese = f"(?<=[{_WIDE}])\n *(?=[{_WIDE}])|(?<=[，。；：、！？]) *\n *"
    return re.sub(r"\s*\n\s*", " ", re.sub(chinese, "", text.strip()))


class Prose:
    """Markdown as a renderable, as wide as there is room."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        at, first = 0, True
        for fence in [*_FENCE.finditer(self.text), None]:
            for block in _blocks(self.text[at : fence.start() if fence else len(self.text)]):
                if not first:
                    yield Text()
                first = False
                for line in block:
                    yield from _wrapped(line, options.max_width)
            if fence:
                if not first:
                    yield Text()
                first, at = False, fence.end()
                code = fence[2].rstrip()
                yield python(code) if fence[1] == "python" else Text(code)


def _blocks(text: str) -> list[list[str]]:
    """Paragraphs, each as its lines: one, or an item of a list each."""
    found = []
    for block in re.split(r"\n[ \t]*\n", text.strip("\n")):
        items: list[str] = []
        for line in block.split("\n"):
            if items and not _BULLET.match(line):
                items[-1] += "\n" + line
            else:
                items.append(line)
        if block.strip():
            found.append([joined(item) for item in items])
    return found


def _wrapped(text: str, width: int) -> list[Text]:
    bullet = _BULLET.match(text)
    indent = " " * len(bullet[0]) if bullet else ""
    lines, line = [], Text()
    for unit in _units(text):
        size = sum(cell_len(piece) for piece, _ in unit)
        blank = all(not piece.strip() for piece, _ in unit)
        if line.cell_len + size > width and line.plain.strip():
            line.rstrip()
            lines.append(line)
            line = Text(indent)
            if blank:
                continue
        for piece, style in unit:
            line.append(piece, style=style)
    if line.plain.strip():
        lines.append(line)
    return lines


def _units(text: str) -> list[list[Piece]]:
    """What must stay on one line: a word, a Chinese character with the punctuation that clings to it."""
    units: list[list[Piece]] = []
    sticks = False  # the unit so far ends with an opening bracket
    for piece, style in _pieces(text):
        for atom in _ATOM.findall(piece):
            last = units[-1][-1][0] if units else ""
            clings = bool(last.strip()) and (sticks or atom[0] in _CLOSING or _one_word(last, atom))
            if clings and atom.strip():
                units[-1].append((atom, style))
            else:
                units.append([(atom, style)])
            sticks = atom[-1] in _OPENING
    return units


def _one_word(before: str, behind: str) -> bool:
    """Two pieces of one word, as in `code`s: neither side is Chinese, and no space is between."""
    wide = f"[{_WIDE}]"
    return bool(behind.strip()) and not re.search(wide + "$", before) and not re.match(wide, behind)


def _pieces(text: str) -> list[Piece]:
    found: list[Piece] = []
    at = 0
    for match in _INLINE.finditer(text):
        found += [(text[at : match.start()], ""), (match[1] or match[2], CODE if match[1] else "bold")]
        at = match.end()
    return [piece for piece in [*found, (text[at:], "")] if piece[0]]
