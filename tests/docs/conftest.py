"""A repository of one module, one measurement and one drawing, for the tests of what pages show of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milestones.site import bench_table, render, source

SOURCE = '''\
"""A module.

    a ─▶ b
"""

# The limit, in tokens.
LIMIT: int = 4


class Thing:
    """A thing with `*stars*` and a < b."""

    size: int = 1

    def __init__(self, size: int) -> None:
        self.size = size

    # Why it doubles.
    @property
    def twice(self) -> int:
        """Twice the size."""

        return 2 * self.size

    def grow(self, by: int) -> int:
        """Grow.

        Args:
            by: how much,
                in `steps`.
        """
        return self.size + by

    def _hidden(self) -> None:
        """Not public."""
'''

DATA = {
    "name": "decode",
    "title": "Decoding",
    "command": "folovllm bench throughput --json",
    "versions": {"torch": "2.13.0"},
    "hardware": {"cpu": "a CPU", "cores": 2},
    "date": "2026-01-02",
    "columns": ["batch", "dtype", "tokens_per_s", "ratio"],
    "rows": [
        {"batch": 1, "dtype": "bfloat16", "tokens_per_s": 14.256, "ratio": 1.5},
        {"batch": 8, "dtype": "bfloat16", "tokens_per_s": 1234.5, "ratio": None},
    ],
}
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 8"><title data-zh="块">A block</title></svg>\n'


@pytest.fixture
def small_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds pkg/thing.py, its m0 version, one benchmark and one drawing."""
    files = {
        "pkg/thing.py": SOURCE,
        "milestones/m0/pkg/thing.py": "LIMIT = 'as it was'\n",
        "data/decode.json": json.dumps(DATA),
        "docs/figures/m0/block.svg": SVG,
        "docs/figures/m0/block.zh.svg": SVG.replace(' data-zh="块">A block', ">块"),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(render, "_solutions", lambda milestone: {})  # it has no exercises
    monkeypatch.setattr(render, "_chinese", lambda: {"Twice the size.": "大小的两倍。"})
    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setattr(bench_table, "DATA", tmp_path / "data")
