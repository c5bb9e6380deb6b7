"""Replicas on a real Ray: one cluster of two replicas for all tests, and it ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that holds the replicas."""
    return tmp_path_factory.mktemp("replicas") / "hold"


@pytest.fixture(scope="session")
def server(hold: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    from folovllm.serving.replicas import cluster
    from folovllm.serving.replicas.launch import make_replicas
    from folovllm.serving.replicas.options import ReplicaOptions
    from tests.ray.support import HeldReplica
    from tests.serve.support import running

    told = {"hold": hold, "is_slow": request.config.option.pace == "slow"}
    engine = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 2, **told}
    options = ReplicaOptions(replicas=2, router="round-robin")
    with pytest.MonkeyPatch.context() as places:
        places.setattr(cluster, "EngineReplica", HeldReplica)
        llm = make_replicas("embedded", engine, options)
    with running(llm=llm, max_queue=1, api_keys=["secret"]) as made:
        yield made


@pytest.fixture
def first_tokens_only(hold: Path) -> Iterator[Any]:
    """To be used as a context: meanwhile no request gets further than its first token, on any replica."""

    @contextmanager
    def held() -> Iterator[None]:
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    return held
