"""A headless Chromium, and the site as both builders make it, from a folder and from a server.

`make browser` runs these tests and gets Chromium where it can. Without one they are skipped and say so; where CI is set
they fail instead.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milestones.site.__main__ import build
from milestones.site.source import ROOT

BUILDERS = ("zensical", "mkdocs")  # the last one stays in site/
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def unavailable(reason: str) -> Any:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser; each test opens a context of its own in it."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        unavailable("playwright is not installed: pip install -e '.[docs,browser]'")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        unavailable("there is no Chromium: apt-get install chromium, or CHROMIUM=/path/to/chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root may not have one
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def built(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with both languages by each builder."""
    folders = {}
    for builder in BUILDERS:
        assert build(builder) == 0
        folders[builder] = tmp_path_factory.mktemp(builder) / "site"
        shutil.copytree(ROOT / "site", folders[builder])
    return folders


@pytest.fixture(scope="session", params=BUILDERS)
def site(request: pytest.FixtureRequest, built: dict[str, Path]) -> Path:
    return built[request.param]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """A line for each request would bury pytest's own."""


@pytest.fixture(scope="session", params=["file", "http"])
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """Where the site is: opened as it lies in its folder, or fetched from a server."""
    if request.param == "file":
        yield site.as_uri()
        return
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Any]:
    """`open_page(width=390, color_scheme="dark")`: an empty page of that size; closed after the test."""
    contexts = []

    def opened(width: int = 1440, **options: Any) -> Any:
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **options))
        contexts[-1].set_default_timeout(600_000)
        return contexts[-1].new_page()

    yield opened
    for context in contexts:
        context.close()
