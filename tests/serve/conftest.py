"""A server in a thread of this process, so that a test can look into its engine, and clients that others wrote."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDED = ("fastapi_offline", "openai", "anthropic", "agents", "langchain_openai", "schemathesis", "llguidance")
if missing := [name for name in NEEDED if find_spec(name) is None]:
    collect_ignore_glob = ["test_*.py"]  # make serve-test installs them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.serve)


if not missing:
    from openai import OpenAI

    from tests.serve.support import Running, running

    @pytest.fixture(scope="session")
    def server() -> Iterator[Running]:
        with running() as made:
            yield made

    @pytest.fixture
    def client(server: Running) -> OpenAI:
        return server.client()
