"""Chinese over the comments and docstrings of a code box; names, code and messages stay as they are.

    docs/comments.zh/m3.toml     [[text]]
                                 en = 'The next step.'
                                 zh = '下一步。'

An entry is found by its English, wherever a box shows it; how the lines are broken does not count. A line of the
Chinese is broken where the box ends; one that is laid out by hand (columns, arrows) stays.
"""

from __future__ import annotations

import io
import re
import tokenize
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from milestones.site.errors import DirectiveError

FOLDER = "docs/comments.zh"
WIDTH = 100  # columns of a box
NEAR = 20  # a line is broken behind a mark if there is one in its last so many columns
_QUOTES = re.compile(r"(?P<open>\w*(?P<marks>\"{3}|'{3}|\"|'))(?P<body>.*)(?P=marks)", re.DOTALL)
_PRAGMA = re.compile(r"(?:noqa|type:|fmt:|mypy:|ruff:|pragma:)")
_NOT_WORDS = re.compile(r"`[^`]*`|\[[^\]]*\]|\w*[\d_]\w*|vLLM: \S+")
_BY_HAND = re.compile(r"\S {2,}\S|[─│┌┐└┘├┤▶◀▲▼]")
_UNIT = re.compile(r"[（“《]*(?:`[^`]*`|[!-~]+|[^ !-~])[，。；：、！？）”》]*| +")
_CLAUSES = re.compile(r".*[，。；：]")
_BETWEEN = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


@dataclass(frozen=True, slots=True)
class Text:
    """One docstring, or a comment of one or more lines."""

    said: str
    first: int  # index of its first line
    last: int
    column: int
    quotes: tuple[str, str] | None  # what opens and what closes a docstring

    @property
    def is_prose(self) -> bool:
        """Whether there is a word to translate: a shape, a dtype or a linter's mark has none."""
        return not _PRAGMA.match(self.said) and re.search(r"[A-Za-z]{2}", _NOT_WORDS.sub("", self.said)) is not None


def key(said: str) -> str:
    return " ".join(said.split())


def read(names: list[str], file: Callable[[str], str]) -> dict[str, str]:
    """key -> Chinese, of all files that there are; an entry that waits for its Chinese is left out."""
    found: dict[str, str] = {}
    for name in names:
        try:
            entries = tomllib.loads(file(f"{FOLDER}/{name}.toml")).get("text", [])
        except DirectiveError:
            continue
        found |= {key(entry["en"]): entry["zh"].strip("\n") for entry in entries if is_done(entry)}
    return found


def is_done(entry: Mapping[str, str]) -> bool:
    """Not while it has no Chinese, or still shows the English `was` that its Chinese belongs to."""
    return bool(entry["zh"].strip()) and "was" not in entry


def texts(code: str) -> list[Text]:
    """All comments and docstrings of `code`, in order."""
    found: list[Text] = []
    lines = code.splitlines()
    before = tokenize.ENCODING
    tokens = list(tokenize.generate_tokens(io.StringIO(code + "\n").readline))
    for token, behind in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.type == tokenize.STRING and before in _BETWEEN and behind.type in (tokenize.NEWLINE, tokenize.COMMENT):
            found.append(_docstring(token))
        elif token.type == tokenize.COMMENT:
            alone = not lines[token.start[0] - 1][: token.start[1]].strip()
            _add_comment(found, token, alone)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    return found


def _docstring(token: tokenize.TokenInfo) -> Text:
    match = _QUOTES.fullmatch(token.string)
    assert match is not None  # the tokenizer calls it a string
    column = token.start[1]
    said = match["body"].strip().replace("\n" + " " * column, "\n")
    return Text(said, token.start[0] - 1, token.end[0] - 1, column, (match["open"], match["marks"]))


def _add_comment(found: list[Text], token: tokenize.TokenInfo, alone: bool) -> None:
    """A comment on a line without code goes on with the one right above it."""
    row, column = token.start[0] - 1, token.start[1]
    said = token.string.removeprefix("#").removeprefix(" ")
    above = found[-1] if found and alone else None
    if above and above.quotes is None and (above.last, above.column) == (row - 1, column):
        found[-1] = Text(f"{above.said}\n{said}", above.first, row, column, None)
    else:
        found.append(Text(said, row, row, column, None))


def laid_over(code: str, chinese: Mapping[str, str], *, is_doc: bool) -> str:
    """`code` with the Chinese of each text that has one. is_doc: it is no code, but a module's docstring alone."""
    if is_doc:
        said = chinese.get(key(code))
        return code if said is None else "\n".join(broken(said, WIDTH))
    lines = code.splitlines()
    for text in reversed(texts(code)):
        if (said := chinese.get(key(text.said))) is not None:
            lines[text.first : text.last + 1] = _lines(text, said, lines[text.first][: text.column])
    return "\n".join(lines)


def _lines(text: Text, chinese: str, before: str) -> Iterator[str]:
    margin = " " * text.column
    if text.quotes is not None:
        start, end = text.quotes
        first, *rest = broken(chinese, WIDTH - text.column)
        yield before + start + first + ("" if rest else end)
        yield from (margin + line if line else "" for line in rest)
        if rest:
            yield margin + end
        return
    behind_code = bool(before.strip())
    for number, line in enumerate(broken(chinese, 10_000 if behind_code else WIDTH - 2 - text.column)):
        yield (margin if number else before) + f"# {line}".rstrip()


def broken(text: str, width: int) -> list[str]:
    """The lines of `text`, none wider than `width` columns but those laid out by hand."""
    out: list[str] = []
    for line in text.splitlines():
        if _BY_HAND.search(line):
            out.append(line)
            continue
        row = margin = line[: len(line) - len(line.lstrip())]
        for unit in _UNIT.findall(line.lstrip()):
            if row.strip() and columns(row) + columns(unit) > width and unit.strip():
                clause = _CLAUSES.match(row)
                end = clause.end() if clause and columns(row[clause.end() :]) <= NEAR else len(row)
                out.append(row[:end].rstrip())
                row = (f"{margin}    " if margin else "") + row[end:].lstrip()
            row += unit if row.strip() else unit.lstrip()
        out.append(row.rstrip())
    return out


def columns(text: str) -> int:
    """How wide it is where a Chinese character takes two columns."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
