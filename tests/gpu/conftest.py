"""`pytest tests/gpu` runs what needs a CUDA device; where there is none it skips all of it.

But for rehearsals: a test that can run on the CPU as well, small, does so where there is no GPU (see places.py).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
NO_GPU = "needs a CUDA device, and torch sees none (one test stands for all cases of its function)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where all of them would be skipped, the first case of a function stands for the others: there are hundreds."""
    mine = [item for item in items if HERE in item.path.parents and not _is_rehearsal(item)]
    for item in mine:
        item.add_marker(pytest.mark.gpu)
    if torch.cuda.is_available():
        items[:] = [item for item in items if not _is_rehearsal(item)]
        return
    first = {_function(item): item for item in reversed(mine)}
    for item in first.values():
        item.add_marker(pytest.mark.skip(reason=NO_GPU), append=False)
    others = set(mine) - set(first.values())
    items[:] = [item for item in items if item not in others]


def _is_rehearsal(item: pytest.Item) -> bool:
    place = (
        item.callspec.params.get("place") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )
    return place is not None and place.device == "cpu"


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.fixture(autouse=True)
def give_memory_back() -> Iterator[None]:
    """To the other processes that test on the same GPU: what torch keeps for later, they may need now."""
    yield
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
