"""What each known mistake answers: a learner is shown a mistake's message where their code gives that very answer.

    mistakes.json      {"frees-what-is-shared": ["test_a_block_of_two", "expected", "got"], …}

An answer is the test that fails first, what it expects, and what it gets. `python -m milestones prove m3/01 --record`
writes the file: it runs each wrong solution. Another value, another exception, a test that does not end are explained
by nobody: a message that is only likely sends a learner to look in the wrong place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
FILE = "mistakes.json"


class Answer(NamedTuple):
    """`expected` is empty beside an exception, which is in `got`."""

    test: str
    expected: str
    got: str

    def is_like(self, other: Answer) -> bool:
        """The same, but for what another CPU rounds otherwise."""
        if self.test != other.test:
            return False
        mine, theirs = (each.expected + "\0" + each.got for each in (self, other))
        if NUMBER.sub("#", mine) != NUMBER.sub("#", theirs):
            return False
        pairs = zip(NUMBER.findall(mine), NUMBER.findall(theirs), strict=True)
        return all(math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-6) for a, b in pairs)


def answer_of(test: str, failure: Mapping[str, Any]) -> Answer | None:
    """Of what inside/lab_judge.py wrote of a test that failed; None if it gave no answer."""
    return Answer(test, *failure["answer"]) if "answer" in failure else None


def read_answers(text: str) -> dict[str, Answer]:
    """Mistake -> its answer."""
    return {name: Answer(*answer) for name, answer in json.loads(text).items()}


def write_answers(answers: Mapping[str, Answer]) -> str:
    return json.dumps(dict(sorted(answers.items())), indent=1, ensure_ascii=False) + "\n"
