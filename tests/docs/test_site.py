"""The two configurations: every page is in the nav, nothing is fetched, both languages share the lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="the docs extra is not installed")

from milestones.site.source import ROOT  # noqa: E402


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML in which `!!python/name:x` is just a name."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def read(name: str) -> dict[str, Any]:
    return yaml.load((ROOT / name).read_text(encoding="utf-8"), Loader=Loader)


def paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        yield from paths(list(nav.values()))
    else:
        for item in nav:
            yield from paths(item)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_nav_holds_every_page_once(lang: str) -> None:
    folder = ROOT / "docs" / lang
    pages = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.md"))
    assert sorted(paths(read("mkdocs.yml")["nav"])) == pages


def test_the_chinese_config_inherits_and_repeats_no_list() -> None:
    child = read("mkdocs.zh.yml")
    assert child["INHERIT"] == "mkdocs.yml"

    def lists(node: Any, where: str = "") -> Iterator[str]:
        for key, value in node.items():
            if isinstance(value, dict):
                yield from lists(value, f"{where}{key}.")
            elif isinstance(value, list):
                yield where + key

    # Zensical appends to an inherited list; it does not read the search plugin's languages.
    assert list(lists(child)) == ["plugins.search.lang"]


def test_nothing_in_the_theme_is_fetched_from_a_network() -> None:
    config = read("mkdocs.yml")
    assert config["theme"]["font"] is False
    for path in [*config["extra"]["polyfills"], *config["extra_css"]]:
        assert (ROOT / "docs/theme" / path).is_file()
    for template in (ROOT / "docs/theme").rglob("*.html"):
        assert "//" not in template.read_text(encoding="utf-8")


def test_each_vendored_library_has_its_licence_and_its_line_in_the_table() -> None:
    vendor = ROOT / "docs/theme/assets/vendor"
    table = (vendor / "README.md").read_text(encoding="utf-8")
    folders: list[Path] = [p for p in vendor.iterdir() if p.is_dir()]
    assert {p.name for p in folders} == {"mermaid", "katex", "iframe-worker"}
    for folder in folders:
        assert (folder / "LICENSE").is_file()
        assert f"| `{folder.name}/` |" in table
