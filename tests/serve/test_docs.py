"""/docs shows its routes where there is no network: all that the page asks for is here."""

from __future__ import annotations

import re

import httpx

from tests.serve.support import Running


def test_the_page_of_the_routes_asks_this_server_alone(server: Running) -> None:
    for path in ("/docs", "/redoc"):
        page = httpx.get(server.url + path)
        assert page.status_code == 200
        asked = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
        assert len(asked) >= 2
        for each in asked:
            assert each.startswith("/")
            assert httpx.get(server.url + each).status_code == 200
    assert httpx.get(f"{server.url}/openapi.json").json()["openapi"].startswith("3.1")
