"""Replicas on a real Ray: one cluster of two replicas for all tests, and it ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MISSING = [name for name in ("ray", "fastapi", "openai") if find_spec(name) is None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)
            if MISSING:
                item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(MISSING)}: make ray-test installs it"))


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    from folovllm.entrypoints.replicas.cluster import ClusterOptions
    from folovllm.entrypoints.replicas.launch import ReplicaOptions, make_replicas
    from tests.serve.support import running

    engine = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 2}
    options = ReplicaOptions(replicas=2, router="round-robin", cluster=ClusterOptions(object_store_mb=100))
    llm = make_replicas("embedded", engine, options)
    with running(llm=llm, max_queue=1, api_keys=["secret"]) as made:
        yield made
