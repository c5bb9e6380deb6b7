"""What a page consists of, apart from its words: headings, marks, formulas, diagrams, images, links.

A page is cut at its headings, and everything is counted per section, so that a difference between two
languages is reported where it is.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from milestones.site.directives import INLINE, MARK, Directive, FenceTracker, parse_directive, written
from milestones.site.errors import DirectiveError
from milestones.site.tags import TAGS, tag_of

_HEADING = re.compile(r"^(?P<marks>#{1,6})[ \t]+(?P<title>.*?)[ \t]*$")
_ANCHOR = re.compile(r'<a id="(?P<id>[^"]*)"></a>$')
_ASCII_ID = re.compile(r"^[a-z0-9][a-z0-9._-]*$")
_CODE_SPAN = re.compile(r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)")
_IMAGE = re.compile(r"!\[[^\]]*\]\((?P<target>[^)\s]+)[^)]*\)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)[^)]*\)")
_FORMULA = re.compile(r"(?<![\\$])\$(?=\S)(?P<tex>[^$\n]+?)(?<=\S)\$(?![\d$])")
_PLACEHOLDER = re.compile(r"@@\w+@@|\b(?:TODO|FIXME|TBD)\b|^[ \t]*[A-Z]+_[A-Z0-9_]+[ \t]*$")
_BOX = re.compile(r'(?:> \[!(?P<note>[A-Z]+)\]|<details class="(?P<kind>[a-z]+))')
_RAW = re.compile(r"^ *(?::::|!!!|\?\?\?|===) |\{\{|\{[ :]*[.#][^{}]*\} *$")
"""What no code host renders: markup that only a builder of sites knows."""


@dataclass(slots=True)
class Heading:
    line: int
    level: int
    title: str
    id: str | None


@dataclass(slots=True)
class Section:
    """A heading and what follows it, up to the next; before the first, a section without one."""

    heading: Heading | None
    line: int
    includes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    links: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Page:
    path: Path
    sections: list[Section]
    directives: list[tuple[int, str, Directive | None]] = field(default_factory=list)
    figures: list[tuple[int, str]] = field(default_factory=list)
    questions: list[tuple[int, str]] = field(default_factory=list)  # (line, tag or "")
    problems: list[tuple[int, str]] = field(default_factory=list)

    @property
    def headings(self) -> list[Heading]:
        return [section.heading for section in self.sections if section.heading is not None]


def scan(path: Path) -> Page:
    """Reads one page; what is wrong with the page by itself lands in `problems`."""
    page = Page(path, [Section(None, 1)])
    fences = FenceTracker()
    in_formula = False
    opened_at = 1  # where the last fence or formula began
    anchor = ""  # of the heading that comes next
    for number, line in enumerate(written(path.read_text(encoding="utf-8")), start=1):
        opened = not fences.marks
        if fences.feed(line):
            if opened:
                opened_at = number
                page.sections[-1].counts[_fence_kind(fences.info)] += 1
            continue
        if line.strip() == "$$":
            in_formula, opened_at = not in_formula, number
            page.sections[-1].counts["block formulas"] += in_formula
            continue
        if not in_formula:
            _scan_line(page, number, line, anchor)
        found = _ANCHOR.match(line)
        anchor = found["id"] if found else ""
    if fences.marks:
        page.problems.append((opened_at, "a fenced block is never closed"))
    if in_formula:
        page.problems.append((opened_at, "a $$ block is never closed"))
    _check_headings(page)
    _check_tags(page)
    return page


def _fence_kind(info: str) -> str:
    language = re.split(r"[\s{]", info, maxsplit=1)[0] or "plain"
    return "mermaid diagrams" if language == "mermaid" else f"{language} blocks"


def _scan_line(page: Page, number: int, line: str, anchor: str) -> None:
    if match := _HEADING.match(line):
        heading = Heading(number, len(match["marks"]), match["title"], anchor or None)
        page.sections.append(Section(heading, number))
    section = page.sections[-1]
    if match := MARK.match(line):
        _directive(page, number, match["body"])
        return
    if match := _BOX.match(line):
        section.counts[f"{match['kind'] or match['note']} boxes"] += 1
        if (found := tag_of(line)) is not None:
            _tag(page, number, *found)
    text = _CODE_SPAN.sub("", line)
    if match := _PLACEHOLDER.search(text):
        page.problems.append((number, f"a placeholder is left: {match[0]}"))
    for match in INLINE.finditer(text):
        section.figures[" ".join(match["body"].split())] += 1
        page.figures.append((number, match["body"]))
    text = re.sub("<!--.*?-->", "", text)
    if match := _RAW.search(_FORMULA.sub("", text)):
        page.problems.append((number, f"a code host shows this as it is written: {match[0].strip()}"))
    section.images.update(match["target"].replace(".zh.svg", ".svg") for match in _IMAGE.finditer(text))
    text = _IMAGE.sub("", text)
    section.links.update(match["target"] for match in _LINK.finditer(text))
    # A link's title may hold a formula, its target none.
    section.counts["inline formulas"] += len(_FORMULA.findall(re.sub(r"\]\([^)]*\)", "]", text)))


def _tag(page: Page, number: int, tag: str, said: str) -> None:
    page.questions.append((number, tag))
    if tag:
        page.sections[-1].counts[f"questions tagged {tag}"] += 1
        if tag not in TAGS:
            page.problems.append((number, f"unknown tag {tag!r} of a question, known are: {', '.join(TAGS)}"))
        elif said not in TAGS[tag].values():
            page.problems.append((number, f"the title must end with <em>{TAGS[tag]['en']}</em> or its Chinese"))


def _check_tags(page: Page) -> None:
    """Where one question of a page is tagged, a reader takes those without a tag for a class of their own."""
    if any(tag for _, tag in page.questions):
        missing = [line for line, tag in page.questions if not tag]
        page.problems += [(line, f"a question without a tag, give one of: {', '.join(TAGS)}") for line in missing]


def _directive(page: Page, number: int, body: str) -> None:
    try:
        directive = parse_directive(body)
    except DirectiveError as error:
        page.directives.append((number, body, None))
        page.problems.append((number, str(error)))
        return
    page.directives.append((number, body, directive))
    page.sections[-1].includes.append(directive.identity())


def _check_headings(page: Page) -> None:
    seen: dict[str, int] = {}
    for heading in page.headings:
        if heading.id is None:
            page.problems.append((heading.line, f"heading without an explicit id: {heading.title}"))
            continue
        if not _ASCII_ID.match(heading.id):
            page.problems.append((heading.line, f"id must be lower-case ASCII: #{heading.id}"))
        if heading.id in seen:
            page.problems.append((heading.line, f"id #{heading.id} is already used in line {seen[heading.id]}"))
        seen.setdefault(heading.id, heading.line)
    ones = [heading for heading in page.headings if heading.level == 1]
    if len(ones) != 1 or page.headings[0].level != 1:
        page.problems.append((1, f"a page starts with its one h1, this one has {len(ones)}"))
