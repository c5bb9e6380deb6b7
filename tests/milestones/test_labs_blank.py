"""Emptying functions, and putting others in their place."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from milestones.chain import Course
from milestones.labs import blank
from milestones.labs.exercise import load_exercises, solved_tree
from milestones.labs.prove import blanked_tree
from milestones.sources import working_tree
from milestones.spec import MilestoneError

ROOT = Path(__file__).resolve().parents[2]
CODE = '''\
import functools


def plain(a, b=(1, 2), *, c: dict[str, int] = {"x": 1}) -> int:
    """Says what."""
    # why
    return a
    # behind it


class Outer:
    class Inner:
        @property
        @functools.cache
        def value(self):
            return 1  # no docstring

    async def later(self):
        """Later."""
        return 2

    def one_line(self): return 3

    def items(self):
        """A generator."""
        yield from (1, 2)

    def after(self):
        return 4
'''


def emptied(name: str) -> str:
    return blank.blank(CODE, name, "exercise m0/01-x: no")


@pytest.mark.parametrize(
    "name", ["plain", "Outer.Inner.value", "Outer.later", "Outer.one_line", "Outer.items", "Outer.after"]
)
def test_the_function_raises_and_all_else_stays(name: str) -> None:
    text = emptied(name)
    assert text.count('raise NotImplementedError("exercise m0/01-x: no")') == 1
    others = [other for other in blank.functions(CODE) if other != name]
    assert [blank.source_of(text, o) for o in others] == [blank.source_of(CODE, o) for o in others]
    assert blank.parameters(text, name) == blank.parameters(CODE, name)


def test_comments_in_the_body_go_and_the_docstring_stays() -> None:
    text = emptied("plain")
    assert '"""Says what."""' in text
    assert "# why" not in text
    assert "# behind it" not in text


def test_decorators_stay() -> None:
    node = blank.find(emptied("Outer.Inner.value"), "Outer.Inner.value")
    assert [ast.unparse(decorator) for decorator in node.decorator_list] == ["property", "functools.cache"]


def test_a_generator_stays_one() -> None:
    names: dict[str, object] = {}
    exec(emptied("Outer.items"), names)
    outer = names["Outer"]()  # type: ignore[operator]
    assert inspect.isgeneratorfunction(outer.items)
    with pytest.raises(NotImplementedError, match="m0/01-x"):
        next(outer.items())


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def g(): ...\n", "must define f once, found 0 times"),
        ("def f(): ...\ndef f(): ...\n", "must define f once, found 2 times"),
        ('def f():\n    """Only this."""\n', "f has no body to write anew"),
        ("def f(:\n", "cannot be read as Python"),
    ],
)
def test_what_cannot_be_emptied_is_told(code: str, text: str) -> None:
    with pytest.raises(MilestoneError, match=text):
        blank.blank(code, "f", "x")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not an archive of it")
def test_the_solutions_put_back_make_the_milestone_byte_for_byte() -> None:
    """So `solution --apply` for all exercises is the milestone, and nothing is stored twice."""
    course = Course.load(working_tree(ROOT))
    for milestone in course.milestones:
        tree, exercises = solved_tree(course, milestone.number), load_exercises(course.snapshot, milestone.number)
        emptied = blanked_tree(tree, exercises)
        assert sum(emptied[path] != tree[path] for path in tree) == len({e.file for e in exercises})
        for e in exercises:
            solution, text = tree[e.file].data.decode(), emptied[e.file].data.decode()
            emptied[e.file] = type(tree[e.file])(e.with_functions_of(text, solution).encode(), tree[e.file].executable)
        assert emptied == tree
