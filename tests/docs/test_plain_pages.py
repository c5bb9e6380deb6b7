"""The pages of this repository can be read as they lie: no markup in view and no dead link."""

from __future__ import annotations

import posixpath
import re
from html import unescape

import pytest
from markdown_it import MarkdownIt

from milestones.chain import Course
from milestones.site.links import markdown_problems
from milestones.site.source import ROOT, locate
from milestones.sources import working_tree

RAW = re.compile(r":::|\{\{|\{[#.]|\?\?\?|!!!|<!--|-->|\*\*|\]\(|`|\| |</?[a-z]")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_as_plain_markdown_no_page_shows_any_markup(lang: str) -> None:
    renderer = MarkdownIt("commonmark", {"html": True}).enable("table")
    for path in sorted((ROOT / "docs" / lang).rglob("*.md")):
        text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        page = re.sub(r"<(code|pre)\b.*?</\1>|<!--.*?-->|<[^>]*>", "", renderer.render(text), flags=re.DOTALL)
        page = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "", unescape(page), flags=re.DOTALL)
        assert [page[max(0, m.start() - 40) : m.end() + 40] for m in RAW.finditer(page)] == [], path


def test_every_link_of_the_readmes_and_pages_leads_to_a_heading_on_disk() -> None:
    assert list(markdown_problems(ROOT)) == []


def test_the_drawings_of_a_milestone_s_pages_are_in_its_tree() -> None:
    course = Course.load(working_tree(ROOT))
    for path, number in course.arrival.items():
        if path.startswith("docs/") and path.endswith(".md"):
            images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", course.snapshot[path].data.decode())
            files = [posixpath.normpath(posixpath.join(posixpath.dirname(path), image)) for image in images]
            assert [file for file in files if course.arrival.get(file, number + 1) > number] == [], path


def test_a_name_of_an_earlier_milestone_is_resolved_as_the_milestones_tool_does() -> None:
    course = Course.load(working_tree(ROOT))
    for milestone in course.milestones:
        for path, file in course.tree(milestone.number).items():
            if path.startswith("folovllm/") and path.endswith(".py"):
                assert locate(path, milestone.id).read_bytes() == file.data, path
