"""A measurement that a page names and that is not there is an error, and a busy machine is told of.

The tables themselves are in the pages, and `make docs` compares them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones.site import bench_table
from milestones.site.directives import parse_directive
from milestones.site.errors import DirectiveError
from milestones.site.render import render_directive

pytestmark = pytest.mark.usefixtures("small_repository")


def shown(mark: str, lang: str = "en") -> str:
    """What stands for a mark in a page of M0."""
    return render_directive(parse_directive(mark), f"docs/{lang}/m0/page.md")


@pytest.mark.parametrize(("busy", "said"), [(True, True), (False, False)])
def test_a_caption_says_that_others_were_busy(busy: bool, said: bool) -> None:
    load = {"cpu_seconds": 12.0, "wall_seconds": 10.0, "cores": 4, "share": 0.3, "is_busy": busy}
    facts = {"command": "c", "hardware": "h", "versions": {}, "date": "d", "columns": ["a"], "rows": [{"a": 1}]}
    text = bench_table.table({**facts, "other_load": load})
    assert ("Other programs used 1.2 of 4 cores (30%) meanwhile" in text) == said
    assert "meanwhile" not in bench_table.table({**facts, "other_load": None})


def test_where_nothing_was_measured_the_page_says_so(tmp_path: Path) -> None:
    assert bench_table.all_tables("en", tmp_path) == "No measurement is stored in this repository."
    assert bench_table.all_tables("zh", tmp_path) == "仓库里还没有存下测量结果。"


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("bench nothing", "no benchmark 'nothing'"),
        ("bench decode columns=speed", "has no column 'speed', it has: batch, dtype, tokens_per_s, ratio"),
        ("bench decode where=batch=2", "has no row where batch=2"),
        ("bench decode where=batch", "where must be COLUMN=VALUE"),
        ("bench", "bench needs a name, as in <!-- bench NAME -->"),
    ],
)
def test_a_table_of_what_is_not_there_is_an_error(mark: str, message: str) -> None:
    with pytest.raises(DirectiveError) as caught:
        shown(mark)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "body, message",
    [
        ("decode ratio", "must match one row, it matches 2"),
        ("decode speed where batch=1", "has no column 'speed'"),
        ("decode", "write NAME COLUMN"),
    ],
)
def test_a_figure_that_is_not_one_cell_is_an_error(body: str, message: str) -> None:
    with pytest.raises(DirectiveError, match=message):
        bench_table.figure(body)


def test_a_benchmark_file_without_its_origin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.json").write_text('{"name": "bare", "columns": [], "rows": []}', encoding="utf-8")
    with pytest.raises(DirectiveError, match=r"bare.json lacks command, versions, hardware, date"):
        bench_table.load("bare", tmp_path)
