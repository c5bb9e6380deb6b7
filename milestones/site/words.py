"""How long the pages are, and how long they may get.

    python -m milestones.site words

    core     the pages of docs/way.toml, with each milestone's first page
    words    of the English pages as they are written: without what stands for the marks, and without markup
    hours    to read them (way.py)

vLLM: none
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from milestones.site.directives import written
from milestones.site.source import ROOT
from milestones.site.way import MARKUP, WAY, core_path, reading_minutes

CORE_WORDS, ALL_WORDS = 49_100, 118_000
"""The most that there may be."""


@dataclass(frozen=True)
class Part:
    """The pages of one folder of docs/en."""

    name: str
    core: list[str]
    texts: dict[str, str]  # of all its pages

    def words(self, *, core: bool) -> int:
        return sum(count(text) for text in self._chosen(core))

    def minutes(self, *, core: bool) -> int:
        return sum(reading_minutes(text) for text in self._chosen(core))

    def _chosen(self, core: bool) -> Iterable[str]:
        return [self.texts[page] for page in self.core] if core else self.texts.values()


def count(text: str) -> int:
    """The words of one page."""
    return len(MARKUP.sub(" ", "\n".join(written(text))).split())


def parts(docs: Path) -> Iterator[Part]:
    """The first hour and what else belongs to no milestone; a part for each milestone; the end."""
    texts = {
        path.relative_to(docs / "en").as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((docs / "en").rglob("*.md"))
    }
    pages = core_path(lambda path: (docs.parent / path).read_text(encoding="utf-8"))
    listed = {page for core in pages.values() for page in core}
    rest = [page for page in texts if "/" not in page and page not in listed]
    for name, core in pages.items():
        first = [f"{name}/index.md"] if f"{name}/index.md" in texts else []
        here = [page for page in texts if page.partition("/")[0] == name]
        if not here:
            here, rest = [*core, *rest], []
        yield Part(name, [*first, *core], {page: texts[page] for page in here})


def print_words(docs: Path = ROOT / "docs") -> int:
    """Prints the table; 1 if there is more than there may be."""
    table = Table()
    for column in ("", "core pages", "words", "hours", "all pages", "words", "hours"):
        table.add_column(column, justify="right" if column else "left")
    every = Part("all", [], {})
    for part in parts(docs):
        _add(table, part)
        every = Part("all", [*every.core, *part.core], {**every.texts, **part.texts})
    table.add_section()
    _add(table, every)
    console = Console()
    console.print(table)
    excesses = [
        f"words: {what} must have at most {most:,} words, got {every.words(core=core):,}"
        for what, core, most in ((f"the core path ({WAY})", True, CORE_WORDS), ("docs/en", False, ALL_WORDS))
        if every.words(core=core) > most
    ]
    for excess in excesses:
        console.print(excess)
    return int(bool(excesses))


def _add(table: Table, part: Part) -> None:
    cells = []
    for core, count in ((True, len(part.core)), (False, len(part.texts))):
        cells += [f"{count}", f"{part.words(core=core):,}", f"{part.minutes(core=core) / 60:.1f}"]
    table.add_row(part.name, *cells)
