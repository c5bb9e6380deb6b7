"""What a learner is handed: notes that are plain Markdown, links that lead somewhere, and no answers."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest

from milestones.chain import Course
from milestones.handout import hand_out
from milestones.labs import blank
from milestones.labs.exercise import load_exercises, solved_tree
from milestones.labs.start import lab_tree
from milestones.site.directives import FenceTracker
from milestones.site.plain import Pages, anchors
from milestones.sources import Snapshot, working_tree
from tests.milestones.labs_support import lab_course

ROOT = Path(__file__).resolve().parents[2]
SOURCE = 'def f():\n    """Doc."""\n    return 1\n'
TABLE = (
    '{"name": "x", "command": "c", "versions": {}, "hardware": "h", "date": "d", "columns": ["a", "b"],'
    ' "rows": [{"a": 1, "b": 2.5}]}'
)
FILES = {
    "pkg/f.py": SOURCE,
    "docs/benchmarks/data/x.json": TABLE,
    "docs/way.toml": "m0 = []\n",
    "docs/comments.zh/m0.toml": "[[text]]\nen = 'Doc.'\nzh = '文档。'\n",
    "docs/en/m0/other.md": "# Other\n\n## The part {#p}\n",
}


def rendered(text: str, lang: str = "en") -> str:
    path = f"docs/{lang}/m0/page.md"
    files = {**FILES, path: text}
    return Pages(lambda name, milestone: files[name]).render(path, text, lang, set(files))


@pytest.mark.parametrize(
    ("page", "plain"),
    [
        ("::: code pkg/f.py f nodoc", "`pkg/f.py` · `f`\n\n```python\ndef f():\n    return 1\n```\n"),
        ("::: bench x nocaption", "| a | b |\n|--:|--:|\n| 1 | 2.50 |\n"),
        ("It is {{ bench x b | .1f }}, and `{{ bench x b }}`.", "It is 2.5, and `{{ bench x b }}`.\n"),
        ("::: live m3/preemption", "*On the published site, a box here runs these steps.*\n"),
        ("## Title {#title}", "## Title\n"),
        ("[a](other.md#p), [b](#here), [c](../map.md)", "[a](other.md#the-part), [b](#here), c\n"),
        ("[d](https://x.y)", "[d](https://x.y)\n"),
        ("![a drawing](gone.svg)", "a drawing\n"),
        (
            '??? question "Why `x`?"\n    Because.\n\n    So.\n\nOn.',
            "<details><summary>Why <code>x</code>?</summary>\n\nBecause.\n\nSo.\n\n</details>\n\nOn.\n",
        ),
        (
            '??? question everywhere "Why?"\n    Because.\n',
            "<details><summary>Why? (asked everywhere)</summary>\n\nBecause.\n\n</details>\n",
        ),
        ('!!! note "N"\n    Text.\n', "> **N**\n>\n> Text.\n"),
        ("```text\n::: code x {#y}\n```", "```text\n::: code x {#y}\n```\n"),
    ],
)
def test_a_page_becomes_plain(page: str, plain: str) -> None:
    assert rendered(page) == plain


def test_a_chinese_page_has_chinese_comments() -> None:
    plain = rendered("::: code pkg/f.py f", "zh")
    assert plain == '`pkg/f.py` · `f`\n\n```python\ndef f():\n    """文档。"""\n    return 1\n```\n'


def test_anchors_are_those_of_a_web_host() -> None:
    text = "# Block tables: `x_y`, again {#a}\n\n## 块表（一） {#b}\n\n## Same {#c}\n\n## Same {#d}\n"
    assert anchors(text) == {"a": "block-tables-x_y-again", "b": "块表一", "c": "same", "d": "same-1"}


def test_a_drawing_of_a_milestone_lies_beside_its_notes_in_both_languages() -> None:
    course = lab_course()
    page, drawing = (
        type(course.snapshot["README.md"])(text.encode())
        for text in (
            "# Ground {#g}\n\n::: figure m0/block\n",
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><title data-zh="块">Block</title></svg>',
        )
    )
    files = {"docs/zh/m0/index.md": page, "docs/figures/m0/block.svg": drawing}
    course = Course.load({**course.snapshot, **files})
    tree = hand_out(course, course.get("m0"))
    assert "![块](../../figures/m0/block.zh.svg)" in tree["docs/zh/m0/index.md"].data.decode()
    assert ">Block</title>" in tree["docs/figures/m0/block.svg"].data.decode()
    assert ">块</title>" in tree["docs/figures/m0/block.zh.svg"].data.decode()
    assert problems({path: file for path, file in tree.items() if path.startswith("docs/")}) == []


def outside_fences(text: str) -> str:
    fences = FenceTracker()
    lines = [line for line in text.splitlines() if not fences.feed(line)]
    return re.sub(r"`[^`\n]*`", "", "\n".join(lines))


def problems(tree: Snapshot) -> list[str]:
    """Directives that are left, and links that lead nowhere."""
    found = []
    for path, file in tree.items():
        if not path.endswith(".md"):
            continue
        text = outside_fences(file.data.decode("utf-8"))
        left = re.findall(r"^ *::: .*|\{\{ *bench.*?\}\}|\{[#.][^}]*\}|\?\?\? .*", text, re.MULTILINE)
        found += [f"{path}: {directive}" for directive in left]
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file_name, _, _ = target.partition("#")
            if not re.match(r"[a-z]+:", target) and file_name:
                there = posixpath.normpath(posixpath.join(posixpath.dirname(path), file_name))
                if there not in tree:
                    found.append(f"{path}: {target} leads nowhere")
    return found


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not an archive of it")
def test_no_tree_has_a_directive_or_a_dead_link_in_its_notes() -> None:
    course = Course.load(working_tree(ROOT))
    assert [problem for m in course.milestones for problem in problems(hand_out(course, m))] == []


def test_the_notes_of_a_lab_do_not_show_the_solution() -> None:
    course = lab_course()
    page = "# Ground {#g}\n\n::: code folovllm/base.py Base.double @m0\n\n::: exercise m0/01-twice\n"
    file = type(course.snapshot["README.md"])
    pages = {"docs/en/m0/index.md": file(page.encode()), "docs/way.toml": file(b'm0 = ["m0/index.md"]\n')}
    course = Course.load({**course.snapshot, **pages})
    plain = hand_out(course, course.get("m0"))["docs/en/m0/index.md"].data.decode()
    emptied = lab_tree(course, course.get("m0"), "en")["docs/en/m0/index.md"].data.decode()
    assert ("return x + x" in plain, "return x + x" in emptied) == (True, False)
    assert "raise NotImplementedError" in emptied
    # What is no answer is not folded under "The answer".
    assert ("The answer to exercise 1" in plain, "The answer to exercise 1" in emptied) == (True, False)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not an archive of it")
def test_no_lab_of_this_course_shows_a_solution() -> None:
    course = Course.load(working_tree(ROOT))
    for milestone in course.milestones:
        exercises = load_exercises(course.snapshot, milestone.number)
        if not exercises:
            continue
        tree = lab_tree(course, milestone, "en")
        shown = "\n".join(
            file.data.decode() for path, file in tree.items() if path.startswith(f"docs/en/{milestone.id}/")
        )
        for e in exercises:
            solution = solved_tree(course, milestone.number)[e.file].data.decode()
            for function in e.functions:
                last = blank.source_of(solution, function).rstrip().splitlines()[-3:]
                assert "\n".join(line.strip() for line in last) not in re.sub(r"(?m)^ +", "", shown), (e.id, function)
