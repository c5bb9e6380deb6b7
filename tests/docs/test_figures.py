"""One drawing serves both languages, and what a page could not show is an error."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from milestones.site import figures, source
from milestones.site.errors import DirectiveError
from milestones.site.parity import compare

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


def test_each_language_gets_its_labels_and_its_places(tmp_path: Path) -> None:
    ((file, chinese),) = figures.chinese()
    assert file == tmp_path / "docs/figures/m3/block.zh.svg"
    assert '<text class="a" x="30" y="20">块表</text>' in chinese
    assert "data-zh" not in chinese
    file.write_text(chinese, encoding="utf-8")
    assert [path.name for path, _ in figures.chinese()] == ["block.zh.svg"]  # made of the other alone
    assert [figures.title(figures.file_in(lang, "m3/block")) for lang in ("en", "zh")] == ["A block", "一个块"]


def test_the_title_is_the_image_s_text_and_the_box_its_size() -> None:
    html = figures.figure("docs/figures/m3/block.svg")
    assert html.startswith('<figure class="drawing"><img alt="A block" width="400" src=')
    assert 'viewBox="0 0 400 100" width="400" height="100"' in image_of(html)
    assert "\n" not in html  # one line: Markdown hands it through, in a box as well


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
        figures.drawing("docs/figures/m3/block.svg", SVG.replace(old, new), "en")
    assert "docs/figures/m3/block.svg" in str(caught.value)
    assert message in str(caught.value)


def test_what_moves_and_can_be_still_is_taken() -> None:
    still = MOVING.replace("</style>", "@media (prefers-reduced-motion: reduce) { .a { animation: none } }</style>")
    assert "animation: none" in figures.drawing("docs/figures/m3/block.svg", still, "en")[0]


def test_a_drawing_that_is_not_there_is_an_error() -> None:
    with pytest.raises(
        DirectiveError, match=r"docs/figures/m3/blok.svg does not exist \(in docs/figures are: m3/block"
    ):
        figures.figure("docs/figures/m3/blok.svg")


def test_both_languages_need_the_same_figures_whatever_their_captions_say(tmp_path: Path) -> None:
    def differences(zh: str) -> list[str]:
        for lang, line in (("en", "![A block](../../figures/m3/block.svg)\n\n*So.*"), ("zh", zh)):
            (tmp_path / "docs" / lang).mkdir(exist_ok=True)
            text = f'<a id="t"></a>\n# T\n\n{line}\n'
            (tmp_path / "docs" / lang / "page.md").write_text(text, encoding="utf-8")
        return [d.what for d in compare(tmp_path / "docs")]

    assert differences("![一个块](../../figures/m3/block.zh.svg)\n\n*如图。*") == []
    assert differences("") == ["#t: image only in en: ../../figures/m3/block.svg"]
