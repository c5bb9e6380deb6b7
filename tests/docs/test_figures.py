"""One drawing serves both languages, and what a page could not show stops the build."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from milestones.site import figures, source
from milestones.site.directives import parse_directive
from milestones.site.errors import DirectiveError
from milestones.site.parity import compare
from milestones.site.plain import Pages
from milestones.site.render import render_directive

ROOT = source.ROOT
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 100">
<title data-zh="一个块">A block</title>
<style>.a { fill: red }</style>
<text class="a" x="8" y="20" data-zh="块表" data-zh-x="30">block table</text>
</svg>
"""
MOVING = SVG.replace(".a {", "@keyframes k { to { opacity: 0 } } .a { animation: k 1s;")


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs/figures/m3").mkdir(parents=True)
    (tmp_path / "docs/figures/m3/block.svg").write_text(SVG, encoding="utf-8")
    monkeypatch.setattr(source, "ROOT", tmp_path)


def image_of(html: str) -> str:
    found = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert found is not None
    return base64.b64decode(found[1]).decode("utf-8")


def test_each_language_gets_its_labels_and_its_places() -> None:
    english = image_of(render_directive(parse_directive("figure m3/block")))
    chinese = image_of(render_directive(parse_directive("figure m3/block"), "zh"))
    assert '<text class="a" x="8" y="20">block table</text>' in english
    assert '<text class="a" x="30" y="20">块表</text>' in chinese
    assert "data-zh" not in english + chinese


def test_the_title_is_the_image_s_text_and_the_box_its_size() -> None:
    html = render_directive(parse_directive("figure m3/block"), "zh")
    assert html.startswith('<figure class="drawing"><img alt="一个块" width="400" src=')
    assert 'width="400" height="100"' in image_of(html)
    assert "\n" not in html  # one line: Markdown hands it through, in a box as well


def test_a_caption_may_hold_code_and_a_formula() -> None:
    html = render_directive(parse_directive('figure m3/block caption="`n` < $n^2$"'))
    assert html.endswith(
        '<figcaption><code>n</code> &lt; <span class="arithmatex">\\(n^2\\)</span></figcaption></figure>'
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</svg>", "", "is not XML"),
        (' viewBox="0 0 400 100"', "", "with a viewBox"),
        ('<title data-zh="一个块">A block</title>', "", "needs a <title>"),
        (' data-zh="块表"', "", '"block table" has no data-zh'),
        ("block table", "块表", '"块表" is Chinese'),
        ("</svg>", "<script>1</script></svg>", "<script> does not work in an image"),
        ("fill: red", "fill: url(https://x.y/z)", "asks another host"),
        (SVG, MOVING, "needs an @media (prefers-reduced-motion: reduce)"),
        ("</svg>", "<rect><animate attributeName='x'/></rect></svg>", "needs an @media (prefers-reduced-motion"),
    ],
)
def test_what_a_page_cannot_show_stops_the_build(old: str, new: str, message: str) -> None:
    assert old in SVG
    with pytest.raises(DirectiveError) as caught:
        figures.drawing("m3/block", SVG.replace(old, new), "en")
    assert "docs/figures/m3/block.svg" in str(caught.value)
    assert message in str(caught.value)


def test_what_moves_and_can_be_still_is_taken() -> None:
    still = MOVING.replace("</style>", "@media (prefers-reduced-motion: reduce) { .a { animation: none } }</style>")
    assert "animation: none" in figures.drawing("m3/block", still, "en")[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("figure m3/blok", "no figure 'm3/blok': docs/figures/m3/blok.svg does not exist (there are: m3/block)"),
        ("figure ../block", "a figure's name looks like m3/running or house, got '../block'"),
        ("figure", "figure needs a name, as in `::: figure NAME`"),
        ("figure m3/block alt=x", "figure has no option 'alt', known are: caption"),
    ],
)
def test_a_name_that_is_not_there_is_an_error(body: str, message: str) -> None:
    with pytest.raises(DirectiveError, match=re.escape(message)):
        render_directive(parse_directive(body))


def test_both_languages_need_the_same_figures_whatever_their_captions_say(tmp_path: Path) -> None:
    def differences(zh: str) -> list[str]:
        for lang, line in (("en", '::: figure m3/block caption="A block"'), ("zh", zh)):
            (tmp_path / "docs" / lang).mkdir(exist_ok=True)
            (tmp_path / "docs" / lang / "page.md").write_text(f"# T {{#t}}\n\n{line}\n", encoding="utf-8")
        return [d.what for d in compare(tmp_path / "docs")]

    assert differences('::: figure m3/block caption="一个块"') == []
    assert differences("") == ["#t: include only in en: figure m3/block"]


@pytest.mark.parametrize(("lang", "title", "file"), [("en", "A block", "block.svg"), ("zh", "一个块", "block.zh.svg")])
def test_a_handed_out_page_shows_the_file_in_its_language(lang: str, title: str, file: str) -> None:
    page = f"docs/{lang}/m3/page.md"
    pages = Pages(lambda path, milestone: {"docs/figures/m3/block.svg": SVG}[path])
    text = pages.render(page, '::: figure m3/block caption="So."\n', lang, {f"docs/figures/m3/{file}"})
    assert text == f"![{title}](../../figures/m3/{file})\n\nSo.\n"
