"""`python -m milestones path`: what a request enters is counted by hand on an engine of two files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milestones import cli
from milestones.path import choose, function_lines, measure
from milestones.spec import MilestoneError
from tests.milestones.conftest import M1, make_course

INIT = "from folovllm.entrypoints.llm import LLM, SamplingParams\n"
LLM = '''\
from folovllm.base import decode, prefill


class SamplingParams:
    def __init__(self, **options):
        self.max_tokens = options["max_tokens"]


class LLM:
    def __init__(self, **options):
        self.engine = self
        self.left = 0

    def add_request(self, name, prompt, params):
        """Queue it."""
        self.max_tokens = self.left = params.max_tokens

    def has_unfinished_requests(self):
        return self.left > 0

    def step(self):
        first = self.left == self.max_tokens
        self.left -= 1
        (prefill if first else decode)()
        self.tell()

    def tell(self):
        pass
'''
BASE = """\
class Base:
    def double(self, x: int) -> int:
        return x + x


def prefill():
    # the prompt
    return 0


def decode():
    [one_layer() for _ in range(2)]


def one_layer():

    return 0
"""
ENGINE = {
    "folovllm/__init__.py": INIT,
    "folovllm/base.py": BASE,
    "folovllm/engine.py": None,
    "folovllm/entrypoints/llm.py": LLM,
}


def course_with_engine():
    return make_course(**ENGINE, **{"milestones/m1/milestone.toml": M1.replace("engine.py", "entrypoints/*.py")})


def test_a_decode_step_is_counted_without_arrival_and_prefill():
    walk = measure(course_with_engine(), course_with_engine().get("m1"))
    # step -> decode -> one_layer twice, in a comprehension -> tell: two files, four functions, five calls.
    assert (walk.files, walk.functions, walk.calls, walk.switches) == (2, 4, 5, 2)
    assert walk.function_calls == {
        "base.py": {"decode": 1, "one_layer": 2},
        "entrypoints/llm.py": {"LLM.step": 1, "LLM.tell": 1},
    }


def test_the_whole_way_has_the_arrival_and_the_prefill_too():
    walk = measure(course_with_engine(), course_with_engine().get("m1"))
    assert walk.file_lines == {"base.py": BASE.count("\n"), "entrypoints/llm.py": LLM.count("\n")}
    assert walk.way_lines == BASE.count("\n") + LLM.count("\n")
    # prefill 3 + decode 2 + one_layer 2, add_request 3 + step 5 + tell 2: __init__ ran before, by another's hand.
    assert walk.function_lines == 17
    assert walk.code_lines == 15  # without prefill's comment and add_request's docstring
    assert walk.package_lines == walk.way_lines + INIT.count("\n")


def test_a_decorator_belongs_to_its_function_and_a_docstring_is_no_code():
    text = '@cache\n@other\ndef f(\n    x,\n):\n    """What.\n\n    Why.\n    """\n    return x  # so\n\n\n'
    text += "def g():\n    pass\n"
    assert function_lines(text, {1}) == (9, 6)
    assert function_lines(text, {13}) == (2, 2)
    assert function_lines(text, {1, 13}) == (11, 8)


def test_a_milestone_without_an_engine_is_refused_and_left_out_of_all():
    course = course_with_engine()
    assert [m.id for m in choose(course, [])] == ["m1"]
    with pytest.raises(MilestoneError, match="m0 serves no request"):
        choose(course, ["m0"])


def test_an_engine_that_fails_is_told_by_its_last_words():
    course = make_course(**ENGINE | {"folovllm/__init__.py": "raise RuntimeError('no weights')\n"})
    with pytest.raises(MilestoneError, match=r"m1 failed:[\s\S]*no weights"):
        measure(course, course.get("m1"))


def test_the_command_prints_a_table_or_json(repository: Path, capsys):
    for path, text in ENGINE.items():
        target = repository / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text) if text is not None else target.unlink()
    spec = repository / "milestones/m1/milestone.toml"
    spec.write_text(spec.read_text().replace("engine.py", "entrypoints/*.py"))

    assert cli.main(["path", "m1", "--files", "--functions"], repository) == 0
    printed = capsys.readouterr().out
    assert "base.py" in printed
    assert "one_layer" in printed

    assert cli.main(["path", "--json"], repository) == 0
    (walk,) = json.loads(capsys.readouterr().out)
    assert (walk["milestone"], walk["files"], walk["calls"]) == ("m1", 2, 5)
