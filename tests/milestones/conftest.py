"""A course of two tiny milestones, as a dictionary and as a git repository.

m0: folovllm/__init__.py (VERSION = 0), folovllm/base.py, tests/m0
m1: folovllm/__init__.py (VERSION = 1), folovllm/engine.py, tests/m1
"""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones.chain import Course
from milestones.sources import IDENTITY, File, git

M0 = """\
title = { en = "Ground", zh = "地基" }
summary = { en = "The ground.", zh = "地基。" }
files = ["folovllm/__init__.py", "folovllm/base.py", "pyproject.toml"]
tests = ["tests/m0/**"]
examples = []
notes = ["docs/*/m0/**"]
changes = []
forbidden = ["Engine"]
"""

M1 = """\
title = { en = "Engine", zh = "引擎" }
summary = { en = "It runs.", zh = "能运行。" }
files = ["folovllm/engine.py"]
tests = ["tests/m1/**"]
examples = []
notes = []
changes = ["folovllm/__init__.py"]
forbidden = []
"""

FILES = {
    "README.md": "the root's own\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['--import-mode=importlib']\n",
    "folovllm/__init__.py": "VERSION = 1\n",
    "folovllm/base.py": "class Base:\n    def double(self, x: int) -> int:\n        return x + x\n",
    "folovllm/engine.py": "from folovllm.base import Base\n\n\nclass Engine(Base):\n    pass\n",
    "tests/m0/test_base.py": (
        "from folovllm.base import Base\n\n\ndef test_double():\n    assert Base().double(2) == 4\n"
    ),
    "tests/m1/test_engine.py": (
        "from folovllm.engine import Engine\n\n\ndef test_engine():\n    assert Engine().double(1) == 2\n"
    ),
    "docs/en/m0/index.md": "# Ground\n",
    "docs/zh/m0/index.md": "# 地基\n",
    "milestones/m0/milestone.toml": M0,
    "milestones/m0/folovllm/__init__.py": "VERSION = 0\n",
    "milestones/m1/milestone.toml": M1,
    "milestones/dormant.toml": '"Base: single base" = "a tiny course"\n',
}


def make_course(**changes: str | None) -> Course:
    """The tiny course; `changes` replaces files or, with None, takes them away."""
    files = {path: text for path, text in {**FILES, **changes}.items() if text is not None}
    return Course.load({path: File(text.encode()) for path, text in files.items()})


@pytest.fixture
def course() -> Course:
    return make_course()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The tiny course, committed in a git repository whose owner has told git no name."""
    root = tmp_path / "repository"
    for path, text in FILES.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    git(root, "init", "--quiet", "--template=")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--no-gpg-sign", "--message", "all", env=IDENTITY)
    return root
