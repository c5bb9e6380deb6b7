"""What a reader does: change the language, search, turn the light off, enlarge a figure, look for the next page."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytestmark = pytest.mark.browser


def test_the_other_language_opens_at_the_same_page_and_section(address: str, open_page: Any) -> None:
    page = open_page()
    page.goto(f"{address}/en/m3/block-tables.html#free-list")
    page.get_by_role("link", name="中文").click()
    page.wait_for_url(f"{address}/zh/m3/block-tables.html#free-list")
    assert page.locator("h1").inner_text().startswith("块表")
    page.get_by_role("link", name="English").click()
    page.wait_for_url(f"{address}/en/m3/block-tables.html#free-list")


def test_the_home_page_changes_its_language_too(address: str, open_page: Any) -> None:
    page = open_page(390)
    page.goto(f"{address}/zh/index.html")
    page.get_by_role("link", name="English").click()
    page.wait_for_url(f"{address}/en/index.html")


@pytest.mark.parametrize(("locale", "lang"), [("zh-CN", "zh"), ("de-DE", "en")])
def test_the_first_page_leads_to_the_reader_s_language(address: str, open_page: Any, locale: str, lang: str) -> None:
    page = open_page(locale=locale)
    page.goto(f"{address}/index.html")
    page.wait_for_url(f"{address}/{lang}/index.html")


TYPING = """() => {
    let focused = document.activeElement;
    while (focused?.shadowRoot) focused = focused.shadowRoot.activeElement;
    return focused?.tagName === "INPUT";
}"""


def open_the_search(page: Any) -> None:
    """Press the search's key until its field has the focus: a page that has just come may not listen yet."""
    from playwright.sync_api import TimeoutError

    for _ in range(600):
        page.keyboard.press("/")
        try:
            page.wait_for_function(TYPING, timeout=1000)
        except TimeoutError:
            continue
        page.keyboard.press("Control+A")  # a second "/" may have reached the field
        return
    raise AssertionError("the search does not open by its key")


@pytest.mark.parametrize(
    ("words", "where", "heading"),
    [
        ("分页", "zh/m3/", "分页"),
        ("block table", "en/m3/", "Block tables"),
        ("EngineArgs", "en/api.html", "EngineArgs"),
    ],
)
def test_the_search_finds_what_the_notes_are_about(
    address: str, open_page: Any, words: str, where: str, heading: str
) -> None:
    page = open_page()
    page.goto(f"{address}/{where[:2]}/index.html")
    open_the_search(page)
    page.keyboard.type(words)
    page.keyboard.press("End")  # Chinese is typed without a key, and one theme searches only when a key comes up
    result = page.locator(f"a[href*='/{where}']").filter(has_text=heading)
    result.first.wait_for()


@pytest.mark.parametrize(
    ("words", "page_name"),
    [("前缀缓存", "m6/index"), ("块表", "m3/block-tables"), ("调度器", "m2/scheduling")],
)
def test_a_search_in_chinese_finds_the_page_of_that_name_first(
    address: str, open_page: Any, words: str, page_name: str
) -> None:
    page = open_page()
    page.goto(f"{address}/zh/index.html")
    open_the_search(page)
    page.keyboard.type(words)
    page.keyboard.press("End")
    hits = page.locator("a[href*='?h=']")  # a result, and no link of the page; it names what it matches
    page.locator(f"a[href*='?h='][href*='{quote(words[-1])}']").first.wait_for()  # all of the words were searched
    pages = [str(hit.get_attribute("href")).partition("/zh/")[2] for hit in hits.all()]
    first = 4 if hits.first.evaluate("e => e.getRootNode() !== document") else 1  # Zensical weighs by itself
    assert any(hit.startswith(f"{page_name}.html?h=") for hit in pages[:first]), pages


def test_the_reader_s_own_choice_of_light_reaches_the_figures(site: Path, open_page: Any) -> None:
    page = open_page(color_scheme="light")
    page.goto((site / "en/architecture.html").as_uri())
    figure = page.locator("figure.drawing img").first

    def colours() -> str:
        return str(figure.evaluate("e => getComputedStyle(e).filter"))

    assert colours() == "none"
    page.locator("label[for^=__palette]:visible").click()
    page.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
    assert colours().startswith("invert")


FIGURES = [
    ("m3/block-tables", ".md-content p > img", 860),  # a picture of each language
    ("architecture", ".md-content figure.drawing img", 920),  # a drawing
    ("m5/budget", ".md-content figure.drawing img", 720),  # a plot
    ("architecture", ".md-content div.mermaid", 800),  # a diagram
]


@pytest.mark.parametrize(("path", "selector", "width"), FIGURES)
def test_on_a_phone_a_figure_opens_at_its_full_size_by_a_key(
    site: Path, open_page: Any, path: str, selector: str, width: int
) -> None:
    page = open_page(390)
    page.goto((site / f"zh/{path}.html").as_uri())
    figure = page.locator(f"{selector}.zoomable").first
    figure.wait_for()
    figure.focus()
    before = figure.bounding_box()
    page.keyboard.press("Enter")
    enlarged = page.locator("dialog.zoom .zoom__sheet > *")
    assert enlarged.bounding_box()["width"] >= width
    page.keyboard.press("Escape")
    page.locator("dialog.zoom").wait_for(state="detached")
    assert figure.bounding_box() == before
    assert figure.evaluate("e => e === document.activeElement")


def test_on_a_phone_a_figure_opens_and_closes_by_a_touch(site: Path, open_page: Any) -> None:
    page = open_page(390, has_touch=True)
    page.goto((site / "en/m3/block-tables.html").as_uri())
    page.locator("img.zoomable").first.tap()
    page.get_by_role("button", name="Close").tap()
    page.locator("dialog.zoom").wait_for(state="detached")


def test_a_figure_that_fits_is_no_button(site: Path, open_page: Any) -> None:
    page = open_page(1440)
    page.goto((site / "en/m3/block-tables.html").as_uri())
    assert page.locator(".md-content img").count() == 1
    assert page.locator(".zoomable").count() == 0


def test_the_sidebar_opens_the_milestone_that_is_read_and_no_other(site: Path, open_page: Any) -> None:
    page = open_page()
    page.goto((site / "en/m3/block-tables.html").as_uri())
    sidebar = page.locator(".md-sidebar--primary")
    assert sidebar.get_by_text("Copy-on-write").is_visible()
    assert not sidebar.get_by_text("The persistent batch").is_visible()
    sidebar.locator("label[aria-label=M2]").click()
    sidebar.get_by_text("The persistent batch").wait_for()
    sidebar.get_by_role("link", name="M2 ·").click()
    page.wait_for_url("**/en/m2/index.html")


@pytest.mark.parametrize(("lang", "words"), [("en", "swipe"), ("zh", "滑动")])
def test_what_scrolls_on_a_phone_says_so(site: Path, open_page: Any, lang: str, words: str) -> None:
    boxes = (
        """[...document.querySelectorAll(".md-content :is(figure.drawing, .md-typeset__scrollwrap, div.arithmatex)")]"""
    )
    says = "getComputedStyle(box, '::before').content.includes(words)"
    page = open_page(390)
    for kind in ("index", "benchmarks", "m9/sums"):  # a wide drawing, tables, formulas
        page.goto((site / f"{lang}/{kind}.html").as_uri())
        page.wait_for_function(f"(words) => {boxes}.some((box) => {says})", arg=words)
        wide = f"{boxes}.filter((box) => box.scrollWidth > box.clientWidth + 1)"
        page.wait_for_function(f"(words) => {wide}.every((box) => {says})", arg=words)
    page.goto((site / f"{lang}/index.html").as_uri())
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_function(f"(words) => !{boxes}.some((box) => {says})", arg=words)
