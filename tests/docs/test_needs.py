"""A core page may point at an optional one, and needs none: tasks and terms stand on core pages.

No section links to an optional page above the box of an exercise, and no link to one has a term of the glossary as its
text, which would say that the term is explained there. Lists of optional pages are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

import pytest

from milestones.site.directives import written
from milestones.site.source import ROOT
from milestones.site.way import stops

LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+\.md)(?:#[\w-]*)?\)")
TERM = re.compile(r"^### (.+)\n\n.+\n\n\*(?:.*?(?:Also: |也叫：)(.+)|.*)\*$", re.MULTILINE)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


PAGES = stops(read)


def links(page: str, text: str) -> Iterator[str]:
    """The texts of those that lead to an optional page."""
    for shown, target in LINK.findall(text):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if path not in (*PAGES, "course.md"):
            yield shown.strip("*`")


def asked(text: str) -> Iterator[str]:
    """Of each section with exercises, what stands above the last of them."""
    for section in re.split(r'^(?=<a id=")', text, flags=re.MULTILINE):
        yield section.rpartition("<!-- exercise ")[0]


def terms(language: str) -> set[str]:
    found = TERM.findall(read(f"docs/{language}/glossary.md"))
    return {name.strip().lower() for term, also in found for name in (term, *re.split("[,，、]", also)) if name}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("page", PAGES)
def test_a_task_and_a_term_need_no_optional_page(page: str, language: str) -> None:
    lines = [line for line in written(read(f"docs/{language}/{page}")) if not re.match(r"\d+\. \[", line)]
    assert [shown for part in asked("\n".join(lines)) for shown in links(page, part)] == []
    assert sorted(terms(language) & {shown.lower() for shown in links(page, "\n".join(lines))}) == []


def test_what_a_task_or_a_term_would_need_is_found() -> None:
    text = '<a id="a"></a>\n\nIt is [a Seed](draw.md#seeds), [q](rope.md).\n\n<!-- exercise m1/05 -->\n\n[x](draw.md)'
    assert [shown for part in asked(text) for shown in links("m1/heads.md", part)] == ["a Seed"]
    assert list(links("m1/heads.md", "[**Seed**](draw.md)")) == ["Seed"]
    assert {"seed", "kv cache"} <= terms("en")
    assert "种子" in terms("zh")
