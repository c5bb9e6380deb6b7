"""The gate sees what differs between two languages, and says where; words it leaves alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from milestones.site.parity import compare
from milestones.site.source import ROOT

EN = """\
<a id="paging"></a>
# Paging

A block holds 16 tokens, so $n$ tokens need $\\lceil n/16 \\rceil$ blocks. See [the pool](pool.md#free).

<a id="block-table"></a>
## The table

$$
x = 1
$$

```mermaid
flowchart LR
  A --> B
```

<!-- code milestones/site/errors.py DirectiveError nodoc title="the error" -->
the code
<!-- end -->

<details class="question" markdown="1"><summary>Why?</summary>

Because.

</details>

![drawn](drawing.svg)
"""
ZH = (
    EN.replace("Paging", "分页")
    .replace("The table", "块表")
    .replace("A block holds 16 tokens, so", "一个块放 16 个 token，所以")
    .replace("[the pool]", "[块池]")
    .replace('title="the error"', 'title="错误"')
    .replace("Because.", "因为如此。")
)


def differences(tmp_path: Path, en: str, zh: str) -> list[str]:
    for lang, text in (("en", en), ("zh", zh)):
        (tmp_path / lang).mkdir(parents=True)
        (tmp_path / lang / "page.md").write_text(text, encoding="utf-8")
    return [f"{d.where} {d.what}" for d in compare(tmp_path)]


def test_a_faithful_translation_passes(tmp_path: Path) -> None:
    assert differences(tmp_path, EN, ZH) == []


@pytest.mark.parametrize(
    "old, new, message",
    [
        (
            "## 块表",
            "### 块表",
            "headings: en ## {#block-table}; zh ### {#block-table}",
        ),
        ('<a id="block-table">', '<a id="table">', "headings: en ## {#block-table}; zh ## {#table}"),
        ('<a id="block-table"></a>\n', "", "heading without an explicit id: 块表"),
        ('<a id="block-table">', '<a id="块表">', "id must be lower-case ASCII: #块表"),
        ('<a id="block-table">', '<a id="paging">', "id #paging is already used in line 2"),
        ("$n$", "n", "#paging: inline formulas: en 2, zh 1"),
        ("$$\nx = 1\n$$\n", "", "#block-table: block formulas: en 1, zh 0"),
        ("```mermaid\nflowchart LR\n  A --> B\n```\n", "", "mermaid diagrams: en 1, zh 0"),
        ("pool.md#free", "pool.md", "link only in zh: pool.md"),
        ("drawing.svg", "other.svg", "image only in en: drawing.svg"),
        ("nodoc ", "", "include only in en: code milestones/site/errors.py DirectiveError nodoc"),
        ('<details class="question" markdown="1">', "<details>", "question boxes: en 1, zh 0"),
        ("因为如此", "{{ bench x }}", "a code host shows this as it is written: {{"),
        ("因为如此。", "因为{ .so }", "a code host shows this as it is written: { .so }"),
        ("](pool.md", "](../en/pool.md", "links into the other language: ../en/pool.md"),
        ("因为如此", "@@WHY@@", "a placeholder is left: @@WHY@@"),
        ("```\n", "", "a fenced block is never closed"),
    ],
)
def test_each_kind_of_difference_is_reported_where_it_is(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ZH
    found = differences(tmp_path, EN, ZH.replace(old, new, 1))
    assert any(message in line for line in found), found
    assert all(re.search(r"/(en|zh)/page\.md:\d+", line) for line in found)


def test_the_order_of_includes_counts(tmp_path: Path) -> None:
    one, two = (f"<!-- code milestones/site/errors.py {n} -->\n<!-- end -->\n" for n in ("DirectiveError", "__doc__"))
    page = '<a id="t"></a>\n# T\n\n'
    assert any("another order" in d for d in differences(tmp_path, f"{page}{one}\n{two}", f"{page}{two}\n{one}"))


def test_a_page_in_one_language_only_is_reported(tmp_path: Path) -> None:
    (tmp_path / "en").mkdir()
    (tmp_path / "zh").mkdir()
    (tmp_path / "en" / "only.md").write_text('<a id="t"></a>\n# T\n', encoding="utf-8")
    assert [d.what for d in compare(tmp_path)] == ["missing, docs/en/only.md exists"]


def test_prices_code_spans_and_fences_hold_no_formulas(tmp_path: Path) -> None:
    text = '<a id="t"></a>\n# T\n\nIt costs \\$5, or `$x$`.\n\n```bash\necho $HOME $PATH\n```\n'
    assert differences(tmp_path, text, text.replace("`$x$`", "x")) == []


def test_the_command_prints_the_place_and_exits_1(tmp_path: Path) -> None:
    differences(tmp_path, EN, ZH.replace("$n$", "n"))
    command = [sys.executable, "-m", "milestones.site", "parity", "--docs", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "parity: 1 differences" in result.stdout


TAGGED = ('class="question" markdown="1"><summary>Why?', 'class="question {}" markdown="1"><summary>Why? <em>{}</em>')


def tagged(text: str, tag: str, said: str) -> str:
    return text.replace(TAGGED[0], TAGGED[1].format(tag, said))


def test_a_question_tagged_otherwise_is_a_difference(tmp_path: Path) -> None:
    en, zh = tagged(EN, "advanced", "advanced"), tagged(ZH, "advanced", "进阶")
    assert differences(tmp_path, en, zh) == []
    (difference,) = differences(tmp_path / "other", en, tagged(ZH, "everywhere", "常考"))[:1]
    assert "questions tagged" in difference


def test_an_unknown_tag_one_that_is_not_said_and_a_question_left_untagged_are_defects(tmp_path: Path) -> None:
    again = '\n<details class="question" markdown="1"><summary>Again?</summary>\n\nNo.\n\n</details>\n'
    found = differences(tmp_path, tagged(EN, "hard", "hard") + again, tagged(ZH, "project", "hard") + again)
    assert any("unknown tag 'hard'" in what for what in found)
    assert any("must end with <em>this project</em>" in what for what in found)
    assert any("a question without a tag" in what for what in found)
