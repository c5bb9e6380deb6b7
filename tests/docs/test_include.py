"""Code enters a page by name, and what is not there stops the build with a sentence that says so."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

markdown = pytest.importorskip("markdown", reason="the docs extra is not installed")

from milestones.site import bench_table, render, source  # noqa: E402
from milestones.site.errors import DirectiveError  # noqa: E402

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


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Markdown to HTML, as in a repository that holds pkg/thing.py, its m0 version and one benchmark."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/thing.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(render, "_solutions", lambda milestone: {})  # it has no exercises
    stored = tmp_path / "milestones/m0/pkg"
    stored.mkdir(parents=True)
    (stored / "thing.py").write_text("LIMIT = 'as it was'\n", encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/decode.json").write_text(json.dumps(DATA), encoding="utf-8")
    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setattr(bench_table, "DATA", tmp_path / "data")

    def run(text: str, lang: str = "en") -> str:
        extensions = ["tables", "attr_list", "milestones.site.include"]
        configs = {"milestones.site.include": {"lang": lang}}
        md = markdown.Markdown(extensions=extensions, extension_configs=configs)
        html = md.convert(textwrap.dedent(text))
        run.markdown = "\n".join(md.lines)  # type: ignore[attr-defined]
        return html

    return run


def shown(convert: Callable[[str], str], text: str) -> str:
    convert(text)
    return convert.markdown.strip()  # type: ignore[attr-defined]


def test_a_method_comes_with_its_comment_and_decorator_at_column_0(convert: Callable[[str], str]) -> None:
    expected = '''\
        ```python title="pkg/thing.py · Thing.twice"
        # Why it doubles.
        @property
        def twice(self) -> int:
            """Twice the size."""

            return 2 * self.size
        ```'''
    assert shown(convert, "::: code pkg/thing.py Thing.twice") == textwrap.dedent(expected)


def test_a_chinese_box_has_the_original_behind_a_tab(
    convert: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "_chinese", lambda: {"Twice the size.": "大小的两倍。"})
    convert("::: code pkg/thing.py Thing.twice", "zh")
    chinese, original = convert.markdown.split('=== "原文"')  # type: ignore[attr-defined]
    assert chinese.lstrip().startswith('===! "中文"')
    assert '    """大小的两倍。"""' in chinese
    assert '"""Twice the size."""' in original
    assert "===" not in shown(convert, "::: code pkg/thing.py Thing.twice")


def test_nodoc_leaves_out_the_docstring_and_the_blank_line_after_it(convert: Callable[[str], str]) -> None:
    text = shown(convert, "::: code pkg/thing.py Thing.twice nodoc")
    assert "def twice(self) -> int:\n    return 2 * self.size\n```" in text


def test_head_ends_before_the_first_method(convert: Callable[[str], str]) -> None:
    text = shown(convert, "::: code pkg/thing.py Thing head")
    assert text.endswith("size: int = 1\n```")


def test_an_assignment_comes_with_the_comment_above_it(convert: Callable[[str], str]) -> None:
    assert "# The limit, in tokens.\nLIMIT: int = 4\n" in shown(convert, "::: code pkg/thing.py LIMIT")


def test_the_module_docstring_is_text_not_python(convert: Callable[[str], str]) -> None:
    text = shown(convert, "::: code pkg/thing.py __doc__")
    assert text.startswith('```text title="pkg/thing.py"\nA module.\n\n    a ─▶ b')


def test_a_milestone_shows_its_own_version(convert: Callable[[str], str]) -> None:
    assert "as it was" in shown(convert, "::: code pkg/thing.py LIMIT @m0")
    assert "LIMIT: int = 4" in shown(convert, "::: code pkg/thing.py LIMIT @m1")


def test_a_directive_keeps_its_indentation(convert: Callable[[str], str]) -> None:
    text = shown(convert, "- item\n\n    ::: code pkg/thing.py LIMIT\n")
    assert "\n    LIMIT: int = 4\n" in text


def test_what_stands_in_a_fence_or_a_code_span_is_shown_not_run(convert: Callable[[str], str]) -> None:
    html = convert("```text\n::: code pkg/thing.py LIMIT\n```\n\n`{{ bench decode ratio }}`\n")
    assert "::: code pkg/thing.py LIMIT" in html
    assert "{{ bench decode ratio }}" in html


def test_a_fence_is_longer_than_the_backticks_in_the_code(tmp_path: Path) -> None:
    from milestones.site.api import fence

    assert fence("a\n```\nb", "python").startswith("````python\n")


@pytest.mark.parametrize(
    "body, message",
    [
        ("code pkg/nothing.py Thing", "pkg/nothing.py does not exist"),
        ("code pkg/thing.py Thing.twise", "no 'twise' in Thing (did you mean 'twice'?)"),
        ("code pkg/thing.py Thing.twice.deeper", "no 'deeper' in Thing.twice"),
        ("code pkg/thing.py LIMIT head", "head is for classes"),
        ("code pkg/thing.py Thing @head", "milestone must look like @m0"),
        ("code ../thing.py Thing", "lies outside the repository"),
        ("code pkg/thing.py Thing colour=red", "code has no option 'colour', known are: title"),
        ("code", "code needs a name"),
        ("kode pkg/thing.py Thing", "unknown directive 'kode', known are: code, bench, plot, api, figure"),
        ("api pkg/thing.py", "api takes a path and one name"),
        ("api pkg/thing.py Thing members=none", "has no Thing.none"),
        ("bench nothing", "no benchmark 'nothing'"),
        ("bench decode columns=speed", "has no column 'speed', it has: batch, dtype, tokens_per_s, ratio"),
        ("bench decode where=batch=2", "has no row where batch=2"),
        ("bench decode where=batch", "where must be COLUMN=VALUE"),
        ("plot decode", "'decode' has nothing to draw"),
        ("plot", "plot needs a name, as in `::: plot NAME`"),
    ],
)
def test_what_is_missing_stops_the_build(convert: Callable[[str], str], body: str, message: str) -> None:
    with pytest.raises(DirectiveError) as caught:
        convert(f"# Title\n\n::: {body}\n")
    assert message in str(caught.value)
    assert f"in `::: {body}`" in str(caught.value)


def test_a_benchmark_becomes_a_table_with_its_origin(convert: Callable[[str], str]) -> None:
    text = shown(convert, '::: bench decode columns="batch,tokens_per_s=tokens/s,ratio"')
    lines = text.splitlines()
    assert lines[0] == "| batch | tokens/s | ratio |"
    assert lines[2:4] == ["| 1 | 14.26 | 1.50 |", "| 8 | 1,234 | – |"]
    assert "Command: `folovllm bench throughput --json`<br>" in text
    assert "Machine: cpu a CPU, cores 2<br>" in text


@pytest.mark.parametrize(("busy", "said"), [(True, True), (False, False)])
def test_a_caption_says_that_others_were_busy(busy: bool, said: bool) -> None:
    load = {"cpu_seconds": 12.0, "wall_seconds": 10.0, "cores": 4, "share": 0.3, "is_busy": busy}
    facts = {"command": "c", "hardware": "h", "versions": {}, "date": "d", "columns": ["a"], "rows": [{"a": 1}]}
    text = bench_table.table({**facts, "other_load": load})
    assert ("Other programs used 1.2 of 4 cores (30%) meanwhile" in text) == said
    assert "meanwhile" not in bench_table.table({**facts, "other_load": None})


def test_where_and_nocaption_narrow_a_table(convert: Callable[[str], str]) -> None:
    text = shown(convert, "::: bench decode columns=batch,ratio where=batch=1 nocaption")
    assert text.splitlines() == ["| batch | ratio |", "|--:|--:|", "| 1 | 1.50 |"]


def test_the_caption_speaks_the_language_of_the_site(convert: Callable[..., str]) -> None:
    assert "命令: " in convert("::: bench decode\n", lang="zh")


def test_columns_that_say_the_same_in_every_row_go_into_the_caption(convert: Callable[[str], str]) -> None:
    text = shown(convert, "::: bench decode")
    assert text.startswith("| batch | tokens per s | ratio |")
    assert "In every row: dtype bfloat16<br>" in text


def test_all_measurements_can_be_shown_at_once(convert: Callable[[str], str]) -> None:
    assert shown(convert, "::: bench *").startswith("**Decoding**\n\n| batch | ")


def test_where_nothing_was_measured_the_page_says_so(tmp_path: Path) -> None:
    assert bench_table.all_tables("en", tmp_path) == "No measurement is stored in this repository."
    assert bench_table.all_tables("zh", tmp_path) == "仓库里还没有存下测量结果。"


def test_one_figure_in_a_sentence(convert: Callable[[str], str]) -> None:
    html = convert("It is {{ bench decode ratio where batch=1 | .1f }} times as fast.")
    assert "It is 1.5 times as fast." in html


@pytest.mark.parametrize(
    "body, message",
    [
        ("decode ratio", "must match one row, it matches 2"),
        ("decode speed where batch=1", "has no column 'speed'"),
        ("decode", "write NAME COLUMN"),
    ],
)
def test_a_figure_that_is_not_one_cell_is_an_error(convert: Callable[[str], str], body: str, message: str) -> None:
    with pytest.raises(DirectiveError, match=message):
        convert(f"It is {{{{ bench {body} }}}} times as fast.")


def test_a_benchmark_file_without_its_origin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.json").write_text('{"name": "bare", "columns": [], "rows": []}', encoding="utf-8")
    with pytest.raises(DirectiveError, match=r"bare.json lacks command, versions, hardware, date"):
        bench_table.load("bare", tmp_path)


def test_a_reference_entry_has_fields_docs_and_public_methods_only(convert: Callable[[str], str]) -> None:
    text = shown(convert, "::: api pkg/thing.py Thing")
    assert "class Thing:\n    size: int = 1\n```" in text
    assert "def __init__(self, size: int) -> None\n```" in text
    assert "@property\ndef twice(self) -> int\n```\n\nTwice the size." in text
    assert "**Args**\n\n- `by`: how much, in `steps`." in text
    assert "_hidden" not in text
    assert "`*stars*` and a &lt; b." in text


def test_a_name_of_an_earlier_milestone_is_resolved_as_the_milestones_tool_does() -> None:
    from milestones.chain import Course
    from milestones.sources import working_tree

    course = Course.load(working_tree(source.ROOT))
    for milestone in course.milestones:
        for path, file in course.tree(milestone.number).items():
            if path.startswith("folovllm/") and path.endswith(".py"):
                assert source.locate(path, milestone.id).read_bytes() == file.data, path


def test_the_tag_of_a_question_ends_its_title_in_the_language_of_the_site(convert: Callable[..., str]) -> None:
    question = '??? question advanced "7. Why `d = 2`?"\n    Because.\n'
    badge = "</code>? <span class='folo-tag folo-tag--advanced'>{}</span>"

    assert badge.format("advanced") in convert(question)
    assert badge.format("进阶") in convert(question, "zh")
    assert "folo-tag" not in convert('??? question "Why?"\n    Because.\n')
