"""Which imports lead nowhere: a tree is a dictionary, and nothing of it is run."""

from __future__ import annotations

import pytest

from milestones.imports import unresolved_imports
from milestones.sources import File

TREE = {
    "folovllm/__init__.py": "def __getattr__(name): ...\n",
    "folovllm/__init__.pyi": (
        "from folovllm.core.pool import Pool as Pool\nfrom folovllm.worker import Worker as Worker\n"
    ),
    "folovllm/core/__init__.py": "",
    "folovllm/core/pool.py": (
        "import torch\nfrom folovllm.core import names as n\n\nSIZE: int = 16\nA, (B, C) = 1, (2, 3)\n"
        "try:\n    FAST = True\nexcept ImportError:\n    pass\nif SIZE:\n    def grow(): ...\nclass Pool: ...\n"
    ),
    "folovllm/core/names.py": "",
    "tests/helpers.py": "def make(): ...\n",
}


def unresolved(line: str, path: str = "folovllm/x.py") -> list[str]:
    return unresolved_imports({name: File(text.encode()) for name, text in {**TREE, path: line}.items()})


@pytest.mark.parametrize(
    "line",
    [
        "import folovllm.core.pool",
        "from folovllm.core import pool",
        "from folovllm.core.pool import A, B, C, FAST, SIZE, Pool, grow, n, torch",
        "from folovllm import Pool",  # its stub names it
        "from tests.helpers import make",
        "from tests import helpers",  # a folder without __init__.py is a package too
        "import numpy.nowhere",  # not ours
    ],
)
def test_what_is_there_resolves(line: str):
    assert unresolved(line) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("import folovllm.worker", "folovllm.worker, which is not there yet"),
        ("from folovllm.worker import a", "folovllm.worker, which is not there yet"),
        ("from folovllm.core import a", "a from folovllm.core, which does not have it yet"),
        ("from folovllm import Worker", "Worker from folovllm, which does not have it yet"),
        ("from folovllm import Whatever", "Whatever from folovllm, which does not have it yet"),
        ("from tests import a", "a from tests, which does not have it yet"),
        ("def f():\n    import folovllm.worker", "folovllm.worker, which is not there yet"),
        ("if TYPE_CHECKING:\n    from folovllm.core import D", "D from folovllm.core, which does not have it yet"),
        ("import folovllm.a\ndef f():\n    import folovllm.a", "folovllm.a, which is not there yet"),
    ],
)
def test_what_is_missing_is_named_once(line: str, problem: str):
    assert unresolved(line) == [f"folovllm/x.py imports {problem}"]
