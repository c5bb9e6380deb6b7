"""A page of the notes as plain Markdown: what a web host or an editor shows without the site's builder.

    ::: code PATH NAME @m3      the code, under the file's name         ## Title {#id}      ## Title
    ::: bench NAME, {{ … }}     the table, the figure                   [x](y.md#id)        [x](y.md#title), or x
    ::: plot NAME               its figures as a table                  ??? question "Q"    <details>
    ::: way, ::: exercise       the table, the box
    ::: figure NAME             the file as an image, and its caption; so is `::: live`

Sources and measurements come from a snapshot, not from the disk: `tag` renders what a commit holds.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Callable, Collection
from typing import Any

from milestones.site import api, bench_table, comments, figures, way
from milestones.site.directives import DIRECTIVE, INLINE, Directive, FenceTracker, parse_directive
from milestones.site.errors import DirectiveError
from milestones.site.live import box
from milestones.site.source import MODULE_DOC, SourceFile, excerpt
from milestones.site.tags import TAGS

Read = Callable[[str, str | None], str]
"""The text of a file, at a milestone ("m3") or as it is at the root (None)."""
_HEADING = re.compile(r"^(#{1,6}) +(.*?) *\{[^{}]*#([^\s{}]+)[^{}]*\} *$")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)(\{[^{}]*\})?")
_BOX = re.compile(r'^( *)(\?\?\?\+?|!!!) +\w+(?: +([\w-]+))?(?: +"(.*)")? *$')
_ATTRIBUTES = re.compile(r"^ *\{ *[.:#][^{}]*\} *$")


class Pages:
    """Renders pages of one snapshot; what is read once is kept."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._sources: dict[tuple[str, str | None], SourceFile] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, dict[tuple[str, str], int]] = {}
        self._anchors: dict[str, dict[str, str]] = {}
        self._over: dict[str, str] | None = None

    def render(self, path: str, text: str, lang: str, there: Collection[str]) -> str:
        """The page at `path`; links lead to paths in `there`, others become their text."""
        lines = self._expanded(text.splitlines(), lang, path)
        lines = _boxes(lines, lang)
        out, fences = [], FenceTracker()
        for line in lines:
            if fences.feed(line):
                out.append(line)
            elif not _ATTRIBUTES.match(line):
                heading = _HEADING.match(line)
                plain = f"{heading[1]} {heading[2]}" if heading else line
                out.append(self._linked(plain, path, there))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip("\n") + "\n"

    def _expanded(self, lines: list[str], lang: str, path: str) -> list[str]:
        out: list[str] = []
        fences = FenceTracker()
        for line in lines:
            if fences.feed(line):
                out.append(line)
            elif match := DIRECTIVE.match(line):
                block = self._directive(parse_directive(match["body"]), lang, path)
                out += ["", *(match["indent"] + row if row else "" for row in block.splitlines()), ""]
            elif "{{" in line:
                parts = re.split(r"(`+[^`]*`+)", line)  # what stands in a code span is shown, not run
                out.append("".join(p if p.startswith("`") else INLINE.sub(self._figure, p) for p in parts))
            else:
                out.append(line)
        return out

    def _directive(self, directive: Directive, lang: str, page: str) -> str:
        path, *names = directive.words
        if directive.kind == "live":  # where no script runs
            path = box.find(path).figure or ""
            if not path:
                return f"*{box.MISSING[lang]}*"
        if directive.kind in ("figure", "live"):
            return self._drawing(path, lang, page, directive.options.get("caption", ""))
        if directive.kind in ("bench", "plot"):
            options = directive.options
            shown = {"columns": options.get("columns", ""), "where": options.get("where", "")}
            return bench_table.table(self._table(path), **shown, caption="nocaption" not in directive.flags, lang=lang)
        if directive.kind == "way":
            return way.render(path, lang, lambda file: self._read(file, None))
        if directive.kind == "exercise":
            return way.render_exercise(path, lang, lambda file: self._read(file, None))
        source = self._source(path, directive.milestone)
        if directive.kind == "api":
            members = directive.options.get("members")
            return api.render(source, names[0], members.split(",") if members is not None else None)
        doc, head = "nodoc" not in directive.flags, "head" in directive.flags
        code = "\n\n".join(excerpt(source, n, doc=doc, head=head) for n in names) if names else source.text
        if lang == "zh":
            code = comments.laid_over(code, self._chinese(), is_doc=names == [MODULE_DOC])
        shown_names = [f"`{name}`" for name in names if name != MODULE_DOC]
        title = directive.options.get("title") or " · ".join([f"`{source.name}`", *shown_names])
        block = f"{title}\n\n{api.fence(code, 'text' if names == [MODULE_DOC] else 'python')}"
        answer = ""
        if directive.milestone and way.YOURS not in code:
            answer = way.folded(path, names, lang, self._solutions(directive.milestone))
        return f"<details><summary>{answer}</summary>\n\n{block}\n\n</details>" if answer else block

    def _chinese(self) -> dict[str, str]:
        if self._over is None:
            names = way.core_path(lambda file: self._read(file, None))
            self._over = comments.read(list(names), lambda file: self._read(file, None))
        return self._over

    def _solutions(self, milestone: str) -> dict[tuple[str, str], int]:
        if milestone not in self._asked:
            self._asked[milestone] = way.solutions(milestone, lambda file: self._read(file, None))
        return self._asked[milestone]

    def _drawing(self, name: str, lang: str, page: str, caption: str) -> str:
        file = figures.file_in(lang, name)
        _, title, _ = figures.drawing(name, self._read(figures.path_of(name), None), lang)
        image = f"![{title}]({posixpath.relpath(file, posixpath.dirname(page))})"
        return f"{image}\n\n{caption}" if caption else image

    def _figure(self, match: re.Match[str]) -> str:
        name = match["body"].split()[0]
        return bench_table.figure_of(self._table(name), match["body"])

    def _table(self, name: str) -> dict[str, Any]:
        if name not in self._tables:
            self._tables[name] = json.loads(self._read(f"docs/benchmarks/data/{name}.json", None))
        return self._tables[name]

    def _source(self, path: str, milestone: str | None) -> SourceFile:
        key = path, milestone
        if key not in self._sources:
            text = self._read(path, milestone)
            try:
                self._sources[key] = SourceFile(path, text.splitlines(), ast.parse(text))
            except SyntaxError as error:
                raise DirectiveError(f"{path} is not valid Python: {error}") from error
        return self._sources[key]

    def _linked(self, line: str, path: str, there: Collection[str]) -> str:
        def link(match: re.Match[str]) -> str:
            image, text, target, _ = match.groups()
            if re.match(r"[a-z]+:", target):
                return f"{image}[{text}]({target})"
            file, _, anchor = target.partition("#")
            page = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
            if page not in there and page != path:
                return str(text)
            if not anchor or image:
                return f"{image}[{text}]({file or target})"
            return f"[{text}]({file}#{self._anchor(page, anchor)})"

        parts = re.split(r"(`+[^`]*`+)(?![^\[]*\]\()", line)
        return "".join(p if p.startswith("`") else _LINK.sub(link, p) for p in parts)

    def _anchor(self, page: str, id: str) -> str:
        """The anchor that a web host makes of the heading with this id."""
        if page not in self._anchors:
            self._anchors[page] = anchors(self._read(page, None))
        return self._anchors[page].get(id, id)


def anchors(text: str) -> dict[str, str]:
    """id -> anchor of each heading of a page."""
    found: dict[str, str] = {}
    seen: dict[str, int] = {}
    fences = FenceTracker()
    for line in text.splitlines():
        if not fences.feed(line) and (heading := _HEADING.match(line)):
            slug = re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")
            count = seen[slug] = seen.get(slug, -1) + 1
            found[heading[3]] = f"{slug}-{count}" if count else slug
    return found


def _boxes(lines: list[str], lang: str) -> list[str]:
    """Questions that open become <details>, with their tag behind the title; notes become quotations."""
    out: list[str] = []
    at = 0
    while at < len(lines):
        box = _BOX.match(lines[at])
        if box is None:
            out.append(lines[at])
            at += 1
            continue
        indent, kind, tag, title = box[1], box[2], box[3], box[4] or ""
        body: list[str] = []
        at += 1
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith(indent + "    ")):
            body.append(lines[at].removeprefix(indent + "    "))
            at += 1
        while body and not body[-1].strip():
            body.pop()
        body = _boxes(body, lang)
        if kind == "!!!":
            out += [f"{indent}> **{title}**", f"{indent}>", *(f"{indent}> {line}".rstrip() for line in body), ""]
        else:
            summary = re.sub(r"`([^`]*)`", r"<code>\1</code>", title)
            if tag in TAGS:
                summary += f" ({TAGS[tag][lang]})"
            out += [f"{indent}<details><summary>{summary}</summary>", "", *body, "", f"{indent}</details>", ""]
    return out
