"""What a page names stands in it, on a code host and on the site; what is old or missing is said with its line.

How each kind of mark is filled, the pages themselves show: `make docs` compares them with what is written anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones.site import pages
from milestones.site.directives import written
from milestones.site.errors import DirectiveError

markdown = pytest.importorskip("markdown", reason="the docs extra is not installed")
pytestmark = pytest.mark.usefixtures("small_repository")


def site(text: str, lang: str = "en") -> str:
    """The HTML that the site has for a page."""
    extensions = ["tables", "attr_list", "md_in_html", "pymdownx.quotes", "milestones.site.dress"]
    configs = {"milestones.site.dress": {"lang": lang}, "pymdownx.quotes": {"callouts": True}}
    return markdown.markdown(text, extensions=extensions, extension_configs=configs)


PAGE = """\
# T

<!-- code pkg/thing.py LIMIT -->
old
<!-- end -->

It is <!-- = decode ratio:.1f where batch=1 -->9<!-- end -->.
"""
FRESH = """\
# T

<!-- code pkg/thing.py LIMIT -->

`pkg/thing.py` · `LIMIT`

```python
# The limit, in tokens.
LIMIT: int = 4
```

<!-- end -->

It is <!-- = decode ratio:.1f where batch=1 -->1.5<!-- end -->.
"""


def test_what_stands_between_the_marks_is_written_once_and_for_all() -> None:
    first = pages.filled("docs/en/m0/page.md", PAGE)
    assert first.text == FRESH
    assert [line for line, _ in first.stale] == [3, 7]
    again = pages.filled("docs/en/m0/page.md", FRESH)
    assert (again.text, again.stale) == (FRESH, [])


def test_a_stale_page_is_named_with_its_line_and_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs/en/m0/page.md"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE, encoding="utf-8")
    (tmp_path / "docs/zh").mkdir()
    monkeypatch.setattr(pages.bench_plot, "PLOTS", ())
    assert pages.run(check=True) == 1
    said = capsys.readouterr().out
    assert "docs/en/m0/page.md:3: code pkg/thing.py LIMIT: is not what stands there; run make pages\n" in said
    assert page.read_text(encoding="utf-8") == PAGE
    assert pages.run(check=False) == 0
    assert page.read_text(encoding="utf-8") == FRESH
    assert pages.run(check=True) == 0


def test_its_author_wrote_the_marks_and_not_what_stands_for_them() -> None:
    assert written(FRESH) == [
        "# T", "", "<!-- code pkg/thing.py LIMIT -->", *[""] * 9, "", "It is <!-- = decode ratio:.1f where batch=1 -->."
    ]  # fmt: skip


def test_a_drawing_has_its_title_in_the_page_and_is_in_the_page_of_the_site() -> None:
    text = "![](../../figures/m0/block.zh.svg)\n\n*So.*\n"
    plain = pages.filled("docs/zh/m0/page.md", text).text
    assert plain == "![块](../../figures/m0/block.zh.svg)\n\n*So.*\n"
    html = site(plain)
    assert html.startswith('<figure class="drawing"><img alt="块" width="9" src="data:image/svg+xml;base64,')
    assert "<em>So.</em>" in html


def test_what_stands_in_a_fence_is_shown_and_not_run() -> None:
    text = "```text\n<!-- code pkg/thing.py LIMIT -->\n![](../../figures/m0/block.svg)\n```\n"
    assert pages.filled("docs/en/m0/page.md", text).text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- code pkg/thing.py LIMIT -->\n", "the mark has no <!-- end -->"),
        ("# T\n\n<!-- kode pkg/thing.py -->\n<!-- end -->\n", ":4: an end without its mark"),
        ("<!-- = decode ratio where batch=1 -->9<!-- end --> times\n", "a figure must not begin a line"),
        (
            "![](../../figures/m0/blok.svg)\n",
            "docs/figures/m0/blok.svg does not exist (in docs/figures are: m0/block.svg",
        ),
    ],
)
def test_a_mark_that_is_not_whole_is_an_error(text: str, message: str) -> None:
    with pytest.raises(DirectiveError) as caught:
        pages.filled("docs/en/m0/page.md", text)
    assert str(caught.value).startswith("docs/en/m0/page.md:")
    assert message in str(caught.value)


def test_a_fence_is_longer_than_the_backticks_in_the_code(tmp_path: Path) -> None:
    from milestones.site.api import fence

    assert fence("a\n```\nb", "python").startswith("````python\n")


@pytest.mark.parametrize(
    "body, message",
    [
        ("code pkg/nothing.py Thing", "pkg/nothing.py does not exist"),
        ("code pkg/thing.py Thing.twise", "no 'twise' in Thing (did you mean 'twice'?)"),
        ("code pkg/thing.py Thing.twice.deeper", "no 'deeper' in Thing.twice"),
        ("code pkg/thing.py LIMIT head", "head is for classes"),
        ("code pkg/thing.py Thing @head", "milestone must look like @m0"),
        ("code ../thing.py Thing", "lies outside the repository"),
        ("code pkg/thing.py Thing colour=red", "code has no option 'colour', known are: title"),
        ("code", "code needs a name"),
        ("code pkg/thing.py Thing colour=", "code has no option 'colour'"),
        ("api pkg/thing.py", "api takes a path and one name"),
        ("api pkg/thing.py Thing members=none", "has no Thing.none"),
    ],
)
def test_what_is_missing_is_an_error_with_its_line(body: str, message: str) -> None:
    with pytest.raises(DirectiveError) as caught:
        pages.filled("docs/en/page.md", f"# Title\n\n<!-- {body} -->\n<!-- end -->\n")
    assert message in str(caught.value)
    assert "docs/en/page.md:3: " in str(caught.value)


def test_the_site_has_the_ids_of_headings_and_the_titles_of_boxes() -> None:
    html = site('<a id="free"></a>\n## 空闲\n\n> [!TIP]\n> **练习 1**\n>\n> `check 1`\n\n> [!NOTE]\n> So.\n')
    assert '<h2 id="free">空闲</h2>' in html
    assert (
        '<div class="admonition example">\n<p class="admonition-title">练习 1</p>\n<p><code>check 1</code></p>' in html
    )
    assert '<div class="admonition note">' in html
    folded = site('<details class="question" markdown="1"><summary>Why?</summary>\n\nBecause *so*.\n\n</details>\n')
    assert "<summary>Why?</summary>\n<p>Because <em>so</em>.</p>\n</details>" in folded
