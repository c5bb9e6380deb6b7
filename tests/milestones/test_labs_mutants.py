"""Small faults in a solution: which there are, by hand, and that a judge which lets one pass is told so."""

from __future__ import annotations

import pytest

from milestones.labs.mutants import mutants
from milestones.labs.prove import choose, prove
from milestones.spec import MilestoneError
from tests.milestones.labs_support import BASE, JUDGE, exercise, lab_course


def names(body: str) -> list[str]:
    text = 'class Base:\n    def double(self, x: int = 3) -> int:\n        """Twice `x`, 2 of it."""\n'
    text += "".join(f"        {line}\n" for line in body.splitlines())
    return [mutant.name.removeprefix("Base.double: ") for mutant in mutants(exercise(), text)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x < 2", ["return x < 2  ->  return x <= 2", "return x < 2  ->  return x < 3"]),
        ("return not x", ["return not x  ->  return x"]),
        ("return x and self", ["return x and self  ->  return x or self"]),
        ("return f(x, self)", ["return f(x, self)  ->  return f(self, x)"]),
        ("return f(x, x)", []),
        ("return self.max(x, self)", []),
        ("return x + x", ["return x + x  ->  return x - x"]),
        ("del x", ["del x  ->  pass"]),
        ("if x:\n    return True", ["if x:  ->  pass"]),
        ("return x in self", ["return x in self  ->  return x not in self"]),
        ("return 1, 1", ["return (1, 1)  ->  return (2, 1)", "return (1, 1)  ->  return (1, 2)"]),
    ],
)
def test_a_fault_is_put_in_each_place_once(body: str, expected: list[str]) -> None:
    assert names(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return self.f().round()", ["return self.f()", "return self.f().floor()"]),
        ("return self.float()", ["return self"]),
        ("return self.double()", ["return self.float()"]),
        ("return self.get(x)", ["return self.pop(x, None)"]),
        ("return self is None", ["return self is not None", "return not self"]),
        ("return self is not None", ["return self is None", "return self"]),
        ("while self:\n    del x", ["if self:", "pass"]),
        ("while self:\n    return", []),
        ("return self[i]", ["return self[0]"]),
        ("return list[int]", []),
        ("return i * x", ["return i + x", "return i"]),
        ("return x * i", ["return x + i"]),
        ("for i in self:\n    if i:\n        del x", ["ends at the first", "pass", "pass"]),
        ("self.f()", ["pass", "twice"]),
    ],
)
def test_what_learners_do_is_among_the_faults(body: str, expected: list[str]) -> None:
    assert [name.partition("  ->  ")[2] for name in names(body)] == expected


def test_the_signature_and_the_docstring_stay_as_they_are() -> None:
    (mutant,) = mutants(exercise(), BASE)
    assert mutant.name == "Base.double: return x + x  ->  return x - x"
    assert "x: int" in mutant.functions
    assert "Twice `x`." in mutant.functions
    assert "return x - x" in exercise().with_functions_of(BASE, mutant.functions)


def test_two_faults_of_one_look_have_two_names() -> None:
    assert names("del x\ndel x") == ["del x  ->  pass", "del x  ->  pass #2"]


def problems(**changes: str | None) -> tuple[int, list[str]]:
    course = lab_course(**changes)
    (proof,), others = prove(course, choose(course, []), modules=("pytest",), count=-1)
    return proof.mutants, [*proof.problems, *others]


def test_a_judge_that_refuses_every_fault_is_proved() -> None:
    assert problems() == (1, [])


def test_of_wrong_and_right_solutions_a_share_is_judged_that_a_seed_draws() -> None:
    course = lab_course(**{"right/twice.py": BASE.replace("x + x", "2 * x"), "right/none.py": BASE})
    drawn = []
    for seed in (1, 1, 2, 3):
        said: list[str] = []
        proofs, _ = prove(course, choose(course, []), said.append, modules=("pytest",), share=2, seed=seed)
        assert proofs[0].problems == []
        drawn.append([line for line in said if "wrong/" in line or "right/" in line])
    assert [len(names) for names in drawn] == [2, 2, 2, 2]
    assert drawn[0] == drawn[1]
    assert drawn[1:] != [drawn[0]] * 3


def test_a_fault_that_passes_is_named() -> None:
    lenient = JUDGE.replace("expect(Base().double(-1), -2)", "Base().double(-1)").replace(
        "double(x), 6", "double(x) in (0, 6), True"
    )
    _, found = problems(**{"judge.py": lenient})
    assert any("a mutant passes" in line and line.endswith("return x + x  ->  return x - x") for line in found)


def test_what_computes_the_same_is_listed_with_its_reason() -> None:
    name = "Base.double: return x + x  ->  return x - x"
    assert problems(**{"equivalent.toml": f'"{name}" = "shown to be left out"\n'}) == (0, [])
    _, found = problems(**{"equivalent.toml": '"Base.double: return x * x" = "an older solution"\n'})
    assert any("which is no mutant of the solution" in line for line in found)
    with pytest.raises(MilestoneError, match="must say why"):
        problems(**{"equivalent.toml": f'"{name}" = ""\n'})
