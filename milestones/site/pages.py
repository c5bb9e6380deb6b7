"""Writes into the pages what they name, so that a page shows the same on a code host, in an editor and on the site.

    python -m milestones.site pages            # write: code, tables, figures, boxes, the Chinese drawings, the plots
    python -m milestones.site pages --check    # fail where one is not what is written here, and say where

An author writes a mark and its end (directives.py); what stands between them is lost. Of an image of docs/figures the
text is its drawing's title.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from milestones.site import bench_plot, bench_table, figures, source, way
from milestones.site.directives import DRAWING, END, INLINE, MARK, OPTIONAL, FenceTracker, parse_directive, written
from milestones.site.errors import DirectiveError
from milestones.site.render import render_directive


@dataclass
class Filled:
    """A file as it has to be, and where it is not so: (line, what stands there)."""

    text: str
    stale: list[tuple[int, str]] = field(default_factory=list)


def filled(page: str, text: str) -> Filled:
    """What the page at `page`, such as docs/en/m3/index.md, has to be.

    Raises:
        DirectiveError: what a mark names does not exist, or a mark has no end; with the page and the line.
    """
    found, out = Filled(""), list[str]()
    fences, lines = FenceTracker(), enumerate(text.splitlines(), start=1)
    number = 0
    try:
        for number, line in lines:
            if fences.feed(line):
                out.append(line)
            elif mark := MARK.match(line):
                before = _up_to_end(lines)
                block = render_directive(parse_directive(mark["body"]), page)
                if END in block.splitlines() or block.splitlines() != before:
                    found.stale.append((number, mark["body"]))
                out += [line, "", *block.splitlines(), "", END]
            elif line.strip() == END:
                raise DirectiveError("an end without its mark")
            else:
                out.append(_line(line, page, text))
                if out[-1] != line:
                    found.stale.append((number, line if len(line) < 100 else line[:99] + "…"))
    except DirectiveError as error:
        raise DirectiveError(f"{page}:{number}: {error}") from error
    found.text = "\n".join(out) + "\n"
    return found


def _up_to_end(lines: Iterator[tuple[int, str]]) -> list[str]:
    """What stands between a mark and its end, which is taken, too."""
    found: list[str] = []
    for _, line in lines:
        if line == END:
            return found[1:-1] if found[:1] == found[-1:] == [""] else found
        found.append(line)
    raise DirectiveError(f"the mark has no {END}")


def _line(line: str, page: str, text: str) -> str:
    """A line of prose with its figures, the titles of its drawings, or the minutes of an optional page."""
    lang = page.split("/")[1]
    if line.lstrip("> -").startswith("<!-- ="):
        raise DirectiveError("a figure must not begin a line: what follows it there would be shown as it is written")
    if line.startswith("*") and written(line) == [OPTIONAL[lang]]:
        return way.optional(text, lang)
    line = INLINE.sub(lambda m: f"<!-- = {m['body']} -->{bench_table.figure(m['body'])}{END}", line)
    return DRAWING.sub(lambda m: f"![{_title(page, m['file'])}]({m['file']})", line)


def _title(page: str, file: str) -> str:
    return figures.title(posixpath.normpath(posixpath.join(posixpath.dirname(page), file)))


def files() -> Iterator[tuple[Path, Filled]]:
    """Each file that has such a part, or is one. The drawings come first, since pages have their titles."""
    for path, text in [*figures.chinese(), *bench_plot.files()]:
        is_so = path.is_file() and path.read_text(encoding="utf-8") == text
        yield path, Filled(text, [] if is_so else [(1, "the drawing")])
    for lang in ("en", "zh"):
        for path in sorted((source.ROOT / "docs" / lang).rglob("*.md")):
            yield path, filled(path.relative_to(source.ROOT).as_posix(), path.read_text(encoding="utf-8"))


def run(*, check: bool) -> int:
    """Writes what is not as it has to be; with `check` it says so instead, and 1 comes back."""
    count = 0
    for path, file in files():
        name = path.relative_to(source.ROOT).as_posix()
        count += bool(file.stale)
        for number, what in file.stale if check else ():
            print(f"{name}:{number}: {what}: is not what stands there; run make pages")
        if not check and not (path.is_file() and path.read_text(encoding="utf-8") == file.text):
            path.write_text(file.text, encoding="utf-8")
            print(f"written: {name}")
    print(f"pages: {count} files {'are not what they have to be' if check else 'have changed'}")
    return int(check and count > 0)
