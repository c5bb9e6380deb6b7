"""Every link inside the built site, the READMEs and the pages as they lie leads somewhere, to the very section, and
those at the foot of a page lead along the core path.

The builders check links between pages as they are written. This looks at what they made: at the header, the sidebar and
the 404 page as well, at images, scripts and style sheets, and at the way from one language to the other.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from milestones.site.directives import FenceTracker

PAGES_OUTSIDE = ("README.md", "README.zh.md", "CONTRIBUTING.md", "docs/README.md", "milestones/labs/README.md")
_ATTRIBUTES = {"href", "src", "srcset", "data", "poster"}
_FOOT = re.compile(r'<a href="([^"]+)" class="md-footer__link md-footer__link--(prev|next)"')
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\((?P<target>[^)\s]+)[^)]*\)")

_CODE = re.compile(r"(?<![\[`])(`+)(?!`).+?(?<!`)\1(?!`)")


class _Page(HTMLParser):
    """What one page of the site points to, and what can be pointed to in it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value or "")
            elif name in _ATTRIBUTES and value is not None:
                self.links.append(value)


def site_problems(site: Path) -> Iterator[str]:
    """`page: link: what is wrong`, for each link of the built site that leads nowhere, or out of it."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in sorted(set(page.links)):
            if problem := _problem(site, path, link, pages):
                yield f"{path.relative_to(site)}: {link}: {problem}"


def _problem(site: Path, page: Path, link: str, pages: dict[Path, _Page]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None  # another host, an address, data
    target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
    if parts.path.startswith("/") or not target.is_relative_to(site):
        # The page for what is not found is served at any depth: its links start at the root of a language's site.
        target = site / page.relative_to(site).parts[0] / unquote(parts.path).lstrip("/")
        if page.name != "404.html":
            return "leads out of the site"
    if target.is_dir():
        return "is a folder: opened from a disk, it shows a listing"
    if not target.is_file():
        return "does not exist"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"has no #{anchor}"
    return None


def way_problems(site: Path, lang: str, pages: list[str]) -> Iterator[str]:
    """Where the foot of a page of the site's core path leads off it. pages: stops() of way.py."""
    files = [page.removesuffix("md") + "html" for page in pages]
    for before, file, after in zip([None, *files[:-1]], files, [*files[1:], None], strict=True):
        links = _FOOT.findall((site / lang / file).read_text(encoding="utf-8"))
        foot = {which: posixpath.normpath(posixpath.join(posixpath.dirname(file), link)) for link, which in links}
        for which, target in (("prev", before), ("next", after)):
            if foot.get(which) != target and (which, before) != ("prev", None):
                yield f"{lang}/{file}: {which} leads to {foot.get(which)} instead of {target}"


def markdown_problems(root: Path) -> Iterator[str]:
    """The same for the Markdown as it lies in the repository: the READMEs and all pages of docs."""
    anchors = cache(slugs)
    for path in [*(root / name for name in PAGES_OUTSIDE), *sorted((root / "docs").glob("??/**/*.md"))]:
        for number, line in _prose(path):
            for match in _LINK.finditer(_CODE.sub("", line)):
                where = f"{path.relative_to(root).as_posix()}:{number}: {match['target']}"
                parts = urlsplit(match["target"])
                if parts.scheme or parts.netloc:
                    continue
                target = path.parent / unquote(parts.path) if parts.path else path
                if not target.exists():
                    yield f"{where}: does not exist"
                elif parts.fragment and target.suffix == ".md" and unquote(parts.fragment) not in anchors(target):
                    yield f"{where}: has no such heading"


def slugs(page: Path) -> set[str]:
    """The anchors of a Markdown page: those of its own, and those that a code host makes of its headings."""
    found: set[str] = set()
    for _, line in _prose(page):
        if match := re.match(r'<a id="([^"]+)"></a>$', line):
            found.add(match[1])
        elif match := re.match(r"#{1,6} +(.*?) *$", line):
            slug = base = re.sub(r"[^\w\- ]", "", match[1].lower()).replace(" ", "-")
            count = 0
            while slug in found:
                count += 1
                slug = f"{base}-{count}"
            found.add(slug)
    return found


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines outside fenced blocks, by number."""
    fences = FenceTracker()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if not fences.feed(line):
            yield number, line
