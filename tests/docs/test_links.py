"""A link that leads nowhere is named, with the page that has it; one that leads somewhere is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones.site import links

PAGE = '<a id="here" href="{link}">x</a>'


def problems(tmp_path: Path, link: str, page: str = "en/m0/index.html") -> list[str]:
    files = {"index.html": "", "en/m0/other.html": '<h2 id="part">x</h2>', "zh/m0/index.html": "", "en/style.css": ""}
    for name, text in (files | {page: PAGE.format(link=link)}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return list(links.site_problems(tmp_path))


@pytest.mark.parametrize(
    "link",
    ["other.html", "other.html#part", "#here", "../../zh/m0/index.html", "../style.css", "https://x.y/z", "mailto:x@y"],
)
def test_a_link_that_leads_somewhere_is_no_problem(tmp_path: Path, link: str) -> None:
    assert problems(tmp_path, link) == []


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ("gone.html", "does not exist"),
        ("other.html#gone", "has no #gone"),
        ("#gone", "has no #gone"),
        ("../../zh/", "is a folder: opened from a disk, it shows a listing"),
        ("../../../outside.html", "leads out of the site"),
        ("/en/m0/other.html", "leads out of the site"),
    ],
)
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, link: str, what: str) -> None:
    assert problems(tmp_path, link) == [f"en/m0/index.html: {link}: {what}"]


def test_the_page_for_what_is_not_found_counts_from_its_language_s_root(tmp_path: Path) -> None:
    assert problems(tmp_path, "/style.css", page="en/404.html") == []
    assert problems(tmp_path, "/gone.css", page="en/404.html") == ["en/404.html: /gone.css: does not exist"]


def test_a_page_in_the_repository_is_followed_to_its_headings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PAGES_OUTSIDE", ("README.md",))
    text = "# A `b`, c\n\n## Same\n\n## Same\n\n[x](#a-b-c) [x](#same-1) [x](#same-2) `[x](gone.md)`\n\n[x](gone.md)\n"
    text += "\n[x](docs/en/a.md#b) [x](docs/en/a.md#title) [x](docs/en/a.md#c) [x](https://x.y/gone.html)\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    (tmp_path / "docs/en").mkdir(parents=True)
    (tmp_path / "docs/en/a.md").write_text('<a id="b"></a>\n# Title\n\n[x](a.md#no)\n', encoding="utf-8")
    assert list(links.markdown_problems(tmp_path)) == [
        "README.md:7: #same-2: has no such heading",
        "README.md:9: gone.md: does not exist",
        "README.md:11: docs/en/a.md#c: has no such heading",
        "docs/en/a.md:4: a.md#no: has no such heading",
    ]
