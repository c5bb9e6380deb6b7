"""A Chinese page's code boxes speak Chinese: the comments are laid over, the code stays, and no entry grows old.

How they are laid over, the pages themselves show: `make docs` compares them with what is written anew.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from milestones.site import comment_entries, comments, render, source
from milestones.site.directives import parse_directive


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """A course of one page, whose one box shows the source that is given; answers what the gate says."""
    monkeypatch.setattr(source, "ROOT", tmp_path)
    (tmp_path / "docs/zh/m0").mkdir(parents=True)
    (tmp_path / "docs/way.toml").write_text('m0 = ["m0/page.md"]\n', encoding="utf-8")
    (tmp_path / "docs/zh/m0/page.md").write_text("# P\n\n<!-- code thing.py -->\n<!-- end -->\n", encoding="utf-8")

    def gate(code: str, *, update: bool = False) -> list[str]:
        (tmp_path / "thing.py").write_text(code, encoding="utf-8")
        if update:
            comment_entries.update(comment_entries.look(tmp_path), tmp_path)
        return comment_entries.problems(comment_entries.look(tmp_path))

    return gate


def test_an_update_asks_for_what_is_missing_and_keeps_the_chinese_of_what_has_changed(course, tmp_path):
    old, new = "# One block is free.\n", "# One block\n# is not free.\n"
    assert course(old, update=True) == ["docs/zh/m0/page.md: thing.py: no Chinese for 'One block is free.'"]
    file = tmp_path / comments.FOLDER / "m0.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("zh = ''", "zh = '有一块空闲。'"), encoding="utf-8")
    assert course(old) == []
    assert course("# One block\n# is free.\n") == []  # broken elsewhere, the same words

    assert len(course(new)) == 2  # one has no Chinese, the other is shown nowhere
    assert course(new, update=True) == [
        "docs/zh/m0/page.md: thing.py: Chinese of an older English for 'One block is not free.'"
    ]
    text = file.read_text(encoding="utf-8")
    assert "was = 'One block is free.'\n" in text
    assert "zh = '有一块空闲。'\n" in text
    assert comments.read(["m0"], lambda path: (tmp_path / path).read_text(encoding="utf-8")) == {}
    comment_entries.update(comment_entries.look(tmp_path), tmp_path, accept=True)
    assert file.read_text(encoding="utf-8") == text.replace("was = 'One block is free.'\n", "")
    assert course(new) == []
    assert course("x = 1\n") == [f"{comments.FOLDER}/m0.toml: no box shows 'One block is not free.'"]


def test_the_chinese_leaves_the_code_of_every_core_box_as_it_is():
    state = comment_entries.look()
    chinese = {key: entry["zh"] for key, entry in state.entries.items()}
    boxes = {shown.box for shown in state.of_core().values() if "__doc__" not in shown.box}
    for box in boxes:
        code = render.shown_code(parse_directive(f"code {box}"))
        assert _bare(comments.laid_over(code, chinese, is_doc=False)) == _bare(code), box


def _bare(code: str) -> str:
    """`code` without what a reader reads: ast has no comments, and docstrings are expressions that say nothing."""

    class Silent(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.Expr:
            return ast.Expr(ast.Constant(0)) if isinstance(node.value, ast.Constant) else node

    return ast.dump(Silent().visit(ast.parse(code)))
