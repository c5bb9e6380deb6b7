"""One word for one thing: what is read in a language says nothing that docs/terms.toml has another word for.

    python -m milestones.site terms

A language's texts are its pages, with their captions; its README and exercises; the labels of the figures; and the
Chinese of the code boxes. Code, ids and the targets of links are left out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from milestones.site import comments
from milestones.site.directives import MARK, FenceTracker, written
from milestones.site.source import ROOT

TERMS = "docs/terms.toml"
LANGUAGES = ("en", "zh")
_CODE = re.compile(r"`+[^`]*`+|<code>[^<]*</code>|\]\([^)]*\)|<[^>]*>")
_NAMES = re.compile(r"\*[^*]+\*$")  # the glossary's line on how else a term is called
_SHOWN = re.compile(r'(?:title|columns)="([^"]*)"')
_LABELS = {"en": re.compile(r">([^<>]+)<"), "zh": re.compile(r'data-zh="([^"]*)"')}


def problems(root: Path = ROOT) -> Iterator[str]:
    """Where, what is written there, and what to write instead."""
    terms: dict[str, dict[str, str]] = tomllib.loads((root / TERMS).read_text(encoding="utf-8"))
    for lang in LANGUAGES:
        for name, lines in texts(root, lang):
            for number, line in lines:
                for found, instead in said(line, terms[lang]):
                    yield f"{name}:{number}: {found} ({instead})"


def said(line: str, terms: dict[str, str]) -> list[tuple[str, str]]:
    """What a line says with another word, and the word to say it with."""
    return [(match[0], instead) for pattern, instead in terms.items() for match in re.finditer(pattern, line)]


def texts(root: Path, lang: str) -> Iterator[tuple[str, Iterator[tuple[int, str]]]]:
    """(path, its numbered lines) of all that is read in a language."""
    readme = root / ("README.md" if lang == "en" else f"README.{lang}.md")
    pages = [*sorted((root / "docs" / lang).rglob("*.md")), readme]
    pages += sorted((root / "milestones/labs").rglob(f"{lang}.md"))
    for path in pages:
        yield _named(root, path, prose(path.read_text(encoding="utf-8")))
    for path in sorted((root / "docs/figures").rglob("*.svg")):
        if ".zh" in path.suffixes:
            continue  # written from the other
        yield _named(root, path, _labels(path, _LABELS[lang]))
    for path in sorted((root / "docs" / lang).rglob("*.svg")):
        yield _named(root, path, _labels(path, _LABELS["en"]))
    for path in sorted((root / comments.FOLDER).glob("*.toml")) if lang == "zh" else ():
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("text", [])
        yield _named(root, path, ((n, _CODE.sub(" ", entry["zh"])) for n, entry in enumerate(entries, 1)))


def _named(root: Path, path: Path, lines: Iterator[tuple[int, str]]) -> tuple[str, Iterator[tuple[int, str]]]:
    return path.relative_to(root).as_posix(), lines


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines of a page as far as they are prose: of a mark what a reader sees of it, of fences the diagrams."""
    fences = FenceTracker()
    for number, line in enumerate(written(page), 1):
        if fences.feed(line):
            shown = line if fences.info == "mermaid" else ""
        elif _NAMES.match(line):
            shown = ""
        else:
            shown = " · ".join(_SHOWN.findall(line)) if MARK.match(line) else line
        yield number, _CODE.sub(" ", shown)


def _labels(path: Path, label: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        yield number, " · ".join(label.findall(line))
