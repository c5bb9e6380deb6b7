"""The parity gate: docs/zh and docs/en say the same, as far as a program can tell.

Same files; the same heading ids and levels in the same order; and in each section the same includes,
formulas, diagrams, code blocks, boxes, images and links. Words are left to people, and what stands for the marks to
`make pages`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from milestones.site.scan import Heading, Page, Section, scan

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing to mend, and where."""

    where: str
    what: str


def compare(docs: Path) -> list[Difference]:
    """Every difference between docs/en and docs/zh, and every defect of a single page."""
    first, second = ({p.relative_to(docs / lang) for p in (docs / lang).rglob("*.md")} for lang in LANGUAGES)
    found = []
    for lang, other, missing in (("zh", "en", first - second), ("en", "zh", second - first)):
        found += [Difference(f"docs/{lang}/{p}", f"missing, docs/{other}/{p} exists") for p in sorted(missing)]
    for lang in LANGUAGES:
        for name in sorted(first if lang == "en" else second):
            found += _alone(docs, scan(docs / lang / name))
    for name in sorted(first & second):
        found += _pair(docs, scan(docs / "en" / name), scan(docs / "zh" / name))
    return found


def _at(docs: Path, page: Page, line: int) -> str:
    return f"{docs.name}/{page.path.relative_to(docs)}:{line}"


def _alone(docs: Path, page: Page) -> Iterator[Difference]:
    for line, text in page.problems:
        yield Difference(_at(docs, page, line), text)
    other = "zh" if page.path.is_relative_to(docs / "en") else "en"
    for section in page.sections:
        for target in section.links:
            if f"/{other}/" in target and "://" not in target:
                yield Difference(_at(docs, page, section.line), f"links into the other language: {target}")


def _pair(docs: Path, en: Page, zh: Page) -> Iterator[Difference]:
    yield from _headings(docs, en, zh)
    english = {s.heading.id if s.heading else "": s for s in en.sections}
    chinese = {s.heading.id if s.heading else "": s for s in zh.sections}
    for key in english.keys() & chinese.keys():
        for what in _section(english[key], chinese[key]):
            where = f"{_at(docs, en, english[key].line)}\n{_at(docs, zh, chinese[key].line)}"
            yield Difference(where, f"#{key}: {what}" if key else what)


def _shape(heading: Heading) -> str:
    return f"{'#' * heading.level} {{#{heading.id}}}"


def _headings(docs: Path, en: Page, zh: Page) -> Iterator[Difference]:
    ours, theirs = [_shape(h) for h in en.headings], [_shape(h) for h in zh.headings]
    for tag, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        lines = [(page.headings[i].line if i < len(page.headings) else 1) for page, i in ((en, a), (zh, c))]
        where = f"{_at(docs, en, lines[0])}\n{_at(docs, zh, lines[1])}"
        yield Difference(where, f"headings: en {', '.join(ours[a:b]) or 'none'}; zh {', '.join(theirs[c:d]) or 'none'}")


def _section(en: Section, zh: Section) -> Iterator[str]:
    if en.includes != zh.includes:
        yield from _only("include", Counter(en.includes), Counter(zh.includes)) or ["includes in another order"]
    for kind in sorted(en.counts.keys() | zh.counts.keys()):
        if en.counts[kind] != zh.counts[kind]:
            yield f"{kind}: en {en.counts[kind]}, zh {zh.counts[kind]}"
    yield from _only("figure", en.figures, zh.figures)
    yield from _only("image", en.images, zh.images)
    yield from _only("link", en.links, zh.links)


def _only(kind: str, en: Counter[str], zh: Counter[str]) -> list[str]:
    return [f"{kind} only in en: {item}" for item in en - zh] + [f"{kind} only in zh: {item}" for item in zh - en]
