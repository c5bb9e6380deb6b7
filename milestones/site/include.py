"""The Markdown extension of the site: puts code, tables and reference entries into a page while it is built.

    ::: code folovllm/request.py Sequence.fork @m0 nodoc title="..."
    ::: bench NAME columns="batch,ratio=times" where="dtype=bfloat16"
    ::: api folovllm/sampling_params.py SamplingParams
    ::: figure m3/running caption="..."
    ::: live m3/running caption="..."
    ::: way m3
    ::: exercise m3/01-block-pool
    {{ bench NAME ratio where batch=1 | .2f }}
    ??? question advanced "7. Why does ..."

A preprocessor, run before the fenced blocks are read: each directive becomes plain Markdown, which the
theme then renders like any other. mkdocs and Zensical both run Python-Markdown, so both take it; a piece
that is missing raises, and that fails either build.
"""

from __future__ import annotations

import re
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

from milestones.site import bench_table
from milestones.site.directives import DIRECTIVE, INLINE, FenceTracker, parse_directive
from milestones.site.errors import DirectiveError
from milestones.site.render import render_directive
from milestones.site.tags import with_badge
from milestones.site.way import OPTIONAL, optional

# Python-Markdown's whitespace normalisation has 30, its and pymdownx's fenced blocks have 25.
_PRIORITY = 28


class IncludePreprocessor(Preprocessor):
    """Replaces every directive outside fenced blocks; its indentation stays: it works in boxes too."""

    def __init__(self, md: Markdown, lang: str) -> None:
        super().__init__(md)
        self.lang = lang

    def run(self, lines: list[str]) -> list[str]:
        out: list[str] = []
        fences = FenceTracker()
        for line in lines:
            if fences.feed(line):
                out.append(line)
            elif match := DIRECTIVE.match(line):
                out += self._block(match["indent"], match["body"])
            elif line == OPTIONAL[self.lang]:
                out.append(optional("\n".join(lines), self.lang))
            else:
                out.append(self._sentence(with_badge(line, self.lang)))
        return out

    def _block(self, indent: str, body: str) -> list[str]:
        try:
            text = render_directive(parse_directive(body), self.lang)
        except DirectiveError as error:
            raise DirectiveError(f"in `::: {body}`: {error}") from error
        return ["", *(indent + line if line else "" for line in text.splitlines()), ""]

    def _sentence(self, line: str) -> str:
        if "{{" not in line:
            return line
        parts = re.split(r"(`+[^`]*`+)", line)  # what stands in a code span is shown, not run
        return "".join(
            p if p.startswith("`") else INLINE.sub(lambda m: bench_table.figure(m["body"]), p) for p in parts
        )


class IncludeExtension(Extension):
    """`milestones.site.include` under markdown_extensions; `lang` chooses the words of table captions."""

    def __init__(self, **kwargs: Any) -> None:
        self.config = {"lang": ["en", "language of the generated words: en or zh"]}
        super().__init__(**kwargs)

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Python-Markdown calls
        md.preprocessors.register(IncludePreprocessor(md, self.getConfig("lang")), "folovllm_include", _PRIORITY)


def makeExtension(**kwargs: Any) -> IncludeExtension:  # noqa: N802 - the name that Python-Markdown looks for
    return IncludeExtension(**kwargs)
