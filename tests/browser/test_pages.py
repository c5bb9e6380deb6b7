"""Each kind of page, on a phone and on a screen, in the light and in the dark, in both languages: it is all there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

KINDS = [
    "index",  # the moving picture, buttons
    "getting-started",  # long lines of code
    "architecture",  # a sequence diagram, a drawing
    "m0/requests",  # a class diagram, a state diagram
    "m3/block-tables",  # a picture of each language
    "m4/online-softmax",  # formulas
    "m5/budget",  # a plot
    "interview",  # boxes that open
    "benchmarks",  # wide tables
    "api",
    "glossary",
    "simulate-here",  # a live box
]
# What a reader would miss. A formula that cannot be read and a diagram with a mistake are drawn as such.
LOOK = """(scheme) => {
  const found = [];
  const say = (what, element) => found.push(`${what}: ${element.textContent.trim().slice(0, 60) || element.src}`);
  for (const e of document.querySelectorAll(".arithmatex"))
    if (!e.querySelector(".katex") || e.querySelector(".katex-error")) say("formula not drawn", e);
  for (const e of document.querySelectorAll("pre.mermaid")) say("diagram not drawn", e);
  for (const e of document.querySelectorAll("div.mermaid")) {
    const svg = e.shadowRoot?.querySelector("svg");
    if (!svg || svg.getBoundingClientRect().height < 20 || svg.getAttribute("aria-roledescription") === "error")
      say("diagram broken", e);
  }
  for (const e of document.images) if (!e.complete || !e.naturalWidth) say("image not loaded", e);
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) found.push(`the page is ${scrollWidth - clientWidth} px wider than the window`);
  if ((document.body.dataset.mdColorScheme === "slate") !== (scheme === "dark")) found.push("the other colours");
  return found;
}"""
# The theme draws when it gets to it: diagrams after the page has come, much again after a change of size or light.
MISSING = f"""async (scheme) => {{
  const look = {LOOK};
  const end = performance.now() + 300000;
  for (;;) {{
    const found = look(scheme);
    if (!found.length || performance.now() > end) return found;
    await new Promise((resolve) => setTimeout(resolve, 30));
  }}
}}"""


TOGGLE = """document.querySelector("label[for^=__palette]:not([hidden])").click()"""
OTHER: dict[Any, Any] = {1440: 390, 390: 1440, "light": "dark", "dark": "light"}


@pytest.mark.parametrize(("lang", "width", "scheme"), [("en", 1440, "light"), ("zh", 390, "dark")])
def test_every_kind_of_page_shows_all_that_it_has(
    site: Path, open_page: Any, lang: str, width: int, scheme: str
) -> None:
    """A page comes in one size and light; then the window changes its size, and the reader the light."""
    page = open_page(width, color_scheme=scheme)
    found: list[str] = []
    where = ""
    page.on("console", lambda m: found.append(f"{where}: console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: found.append(f"{where}: error: {error}"))
    page.on("request", lambda r: None if local(r.url) else found.append(f"{where}: asks for {r.url}"))
    for kind in KINDS:
        page.goto((site / lang / f"{kind}.html").as_uri())
        for step in ("loaded", "resized", "toggled", "resized back"):
            if step == "toggled":
                page.evaluate(TOGGLE)  # the theme keeps it for the pages that follow
                scheme = OTHER[scheme]
            elif step != "loaded":
                width = OTHER[width]
                page.set_viewport_size({"width": width, "height": 900})
            where = f"{lang}/{kind}, {width}, {scheme}"
            found += [f"{where}: {what}" for what in page.evaluate(MISSING, scheme)]
    assert found == []


def local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:"))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_page_that_is_not_there_is_answered_in_the_site_s_look(site: Path, open_page: Any, lang: str) -> None:
    page = open_page()
    page.goto((site / lang / "404.html").as_uri())
    assert page.locator("header").is_visible()
