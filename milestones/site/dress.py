"""The Markdown extension of the site: what it has beyond a code host. The pages themselves are plain Markdown.

    <a id="x"></a> above a heading      the heading's own id, so that the contents and the links name it
    an image of docs/figures            the drawing in the page itself, since it lies outside of the site's folder
    <!-- live m3/running -->            the box in which the milestone's scheduler runs, in place of its picture
    > [!TIP] above > **title**          a box with that title (an exercise)
    <!-- exercise m0/02-fork -->        below it, where it needs nothing but Python, the box in which it is solved

A preprocessor, run before the fenced blocks are read. mkdocs and Zensical both run Python-Markdown, so both take it; a
piece that is missing raises, and that fails either build.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

from milestones.site.directives import DRAWING, END, INLINE, MARK, FenceTracker
from milestones.site.figures import FOLDER, figure
from milestones.site.live import exercises
from milestones.site.render import live_box

# Python-Markdown's whitespace normalisation has 30, its and pymdownx's fenced blocks have 25.
_PRIORITY = 28
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>$')


class DressPreprocessor(Preprocessor):
    def __init__(self, md: Markdown, lang: str) -> None:
        super().__init__(md)
        self.lang = lang

    def run(self, lines: list[str]) -> list[str]:
        out: list[str] = []
        fences = FenceTracker()
        anchor, in_live, below = "", False, ""
        for line in lines:
            if in_live:
                in_live = line != END
            elif fences.feed(line):
                out.append(line)
            elif found := _ANCHOR.match(line):
                anchor = found[1]
            elif mark := MARK.match(line):
                kind, _, name = mark["body"].partition(" ")
                in_live = kind == "live"
                below = exercises.render(name, self.lang) if kind == "exercise" else ""
                out += ["", live_box(name, self.lang), ""] if in_live else [""]
            elif line == END:
                out += ["", below, ""]
                below = ""
            elif drawing := DRAWING.fullmatch(line):
                file = posixpath.normpath(drawing["file"]).lstrip("./")
                out += ["", figure(f"{FOLDER.partition('/')[0]}/{file}"), ""]
            elif anchor and line.startswith("#"):
                out.append(f"{line} {{#{anchor}}}")
                anchor = ""
            elif line.startswith("> **") and out and out[-1] == "> [!TIP]":
                out[-1] = f"> [!example] {line.removeprefix('> ').strip('*')}"
            else:
                out.append(INLINE.sub(r"\g<shown>", line))
        return out


class DressExtension(Extension):
    """`milestones.site.dress` under markdown_extensions; `lang` chooses the words of the live boxes."""

    def __init__(self, **kwargs: Any) -> None:
        self.config = {"lang": ["en", "language of the generated words: en or zh"]}
        super().__init__(**kwargs)

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Python-Markdown calls
        md.preprocessors.register(DressPreprocessor(md, self.getConfig("lang")), "folovllm_dress", _PRIORITY)


def makeExtension(**kwargs: Any) -> DressExtension:  # noqa: N802 - the name that Python-Markdown looks for
    return DressExtension(**kwargs)
