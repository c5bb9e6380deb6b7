"""Next at the foot of a page: from the first hour to the last page, through the core path only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milestones.site.__main__ import CONFIGS
from milestones.site.links import way_problems
from milestones.site.source import ROOT
from milestones.site.way import core_path, stops

pytest.importorskip("material", reason="the docs extra is not installed")

import jinja2
from mkdocs.config import load_config
from mkdocs.structure.files import get_files
from mkdocs.structure.nav import get_navigation
from mkdocs.utils.templates import url_filter

# The theme's page without all that stands above its foot, which takes a hundred times as long.
PAGE = """\
{% import "partials/language.html" as lang with context %}{% set features = config.theme.features %}
{% block footer %}{% include "partials/footer.html" %}{% endblock %}
"""


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=list(CONFIGS))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """(language, a folder with the foot of each page, the nav)"""
    config = load_config(str(ROOT / CONFIGS[request.param]))
    nav = get_navigation(get_files(config), config)
    env = config.theme.get_env()
    env.loader = jinja2.ChoiceLoader([jinja2.DictLoader({"base.html": PAGE}), env.loader])
    env.filters["url"] = url_filter
    folder = tmp_path_factory.mktemp("site")
    for page in nav.pages:
        html = env.get_template("main.html").render(config=config, nav=nav, page=page, base_url="")
        path = folder / request.param / page.file.dest_uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    return request.param, folder, nav


def test_next_goes_through_the_core_path_to_the_last_page_and_previous_back(site: tuple[str, Path, Any]) -> None:
    lang, folder, _ = site
    pages = stops(read)
    assert (pages[0], pages[-1]) == ("first-hour.md", "closing.md")
    assert list(way_problems(folder, lang, pages)) == []


def test_next_of_a_milestones_optional_pages_goes_through_them_and_back_to_the_core_path(
    site: tuple[str, Path, Any],
) -> None:
    lang, folder, nav = site
    uris = [page.file.src_uri for page in nav.pages]
    pages = stops(read)
    for name in core_path(read):
        optional = [uri for uri in uris if uri.startswith(f"{name}/") and uri not in pages]
        if optional:
            behind = pages[max(place for place, page in enumerate(pages) if page.startswith(f"{name}/")) + 1]
            problems = [*way_problems(folder, lang, [*optional, behind])]
            assert all(problem.startswith(f"{lang}/{behind.removesuffix('md')}") for problem in problems), problems


def test_a_foot_that_leads_off_the_way_is_named(tmp_path: Path) -> None:
    foot = '<a href="{}" class="md-footer__link md-footer__link--{}" aria-label="x">'
    feet = {
        "a": foot.format("m0/b.html", "next"),
        "m0/b": foot.format("../a.html", "prev") + foot.format("optional.html", "next"),
        "c": foot.format("m0/optional.html", "prev"),
    }
    for name, text in feet.items():
        path = tmp_path / "en" / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert list(way_problems(tmp_path, "en", ["a.md", "m0/b.md", "c.md"])) == [
        "en/m0/b.html: next leads to m0/optional.html instead of c.html",
        "en/c.html: prev leads to m0/optional.html instead of m0/b.html",
    ]
