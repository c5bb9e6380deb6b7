"""`python -m milestones carry`, on a repository of four milestones.

    words.py   m0 GREETING = "hi"     m1 "hello"     m2 "good day"     the root, m3 "welcome"

Far from that line is `LIMIT = 1`, the same in each, and between them enough to keep two changes apart. Beside it are
small likenesses of engine files, with the fixes that FIXES names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from milestones import cli
from milestones.carry import Carried, carry, write
from milestones.chain import Course
from milestones.sources import IDENTITY, git, working_tree
from milestones.spec import MilestoneError

PATH = "folovllm/words.py"
SPEC = """\
title = { en = "One", zh = "一" }
summary = { en = "One.", zh = "一。" }
files = [%s]
tests = []
examples = []
notes = []
changes = [%s]
forbidden = []
"""
ROOT = 3


def words(greeting: str, limit: int = 1) -> str:
    return f'GREETING = "{greeting}"\n\n\ndef greet(name):\n    return GREETING + name\n\n\nLIMIT = {limit}\n'


WORDS = {0: words("hi"), 1: words("hello"), 2: words("good day"), ROOT: words("welcome")}

ADMIT = "class Scheduler:\n    def admit(self):\n        return self.fits()\n"
RESERVING = """\
class Scheduler:
    def admit(self):
        return self.fits(self.reserve())

    def reserve(self):
        return self.watermark

    def __init__(self):
        self.watermark = 0.02
"""
SCHEDULER = {0: ADMIT, 1: RESERVING, ROOT: RESERVING.replace("self.fits", "not self.swapped and self.fits")}
RAISE = 'def add_request(request_id):\n    if request_id in requests:\n        raise ValueError("taken")\n    start()\n'
LOCKED = """\
def add_request(request_id):
    with lock:
        if request_id in requests:
            raise ValueError("taken")
    start()
"""
ENGINE = {0: RAISE, 1: LOCKED, 2: f"import time\n\n\n{LOCKED}", ROOT: f"import time\n\n\n{LOCKED}    trace()\n"}
SAMPLER = {n: f"limit = top_k.clamp(width)\n\n\nVERSION = {n}\n" for n in (1, ROOT)}
RUNNER = {n: f"def execute():\n    pass  # an interupt\n\n\nVERSION = {n}\n" for n in (0, 1, 2, ROOT)}
FILES = {
    PATH: WORDS,
    "folovllm/scheduler.py": SCHEDULER,
    "folovllm/llm_engine.py": ENGINE,
    "folovllm/sampler.py": SAMPLER,
    "folovllm/runner.py": RUNNER,
}


@dataclass(frozen=True)
class Fix:
    path: str
    old: str
    new: str
    first: int  # the earliest milestone that has the code
    up: tuple[int, int]  # merges, and those of them that conflict, when it is made there
    down: tuple[int, int]  # … and when it is made at the root

    @property
    def versions(self) -> dict[int, str]:
        return FILES[self.path]


FIXES = {
    "a watermark": Fix("folovllm/scheduler.py", "0.02", "0.01", 1, (1, 0), (1, 0)),
    "the reserve": Fix("folovllm/scheduler.py", "return self.watermark", "return 0", 1, (1, 0), (1, 0)),
    "an error's text": Fix("folovllm/llm_engine.py", '"taken"', '"taken: choose another"', 0, (3, 1), (3, 1)),
    "a clamp": Fix("folovllm/sampler.py", "clamp(width)", "clamp(max=width)", 1, (1, 0), (1, 0)),
    "a comment": Fix("folovllm/runner.py", "interupt", "interrupt", 0, (3, 0), (3, 0)),
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    files = {place(n, path): text for path, versions in FILES.items() for n, text in versions.items()}
    files["folovllm/other.py"] = "OTHER = 1\n"
    for number in range(ROOT + 1):
        arrives = [path for path, versions in FILES.items() if min(versions) == number]
        changes = [path for path, versions in FILES.items() if number and number - 1 in versions]
        listed = [*arrives, *(["folovllm/other.py"] if number == 0 else [])]
        files[f"milestones/m{number}/milestone.toml"] = SPEC % (quoted(listed), quoted(changes))
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    git(folder, "init", "--quiet", "--template=")
    commit_all(folder)
    monkeypatch.setattr(cli, "repository_root", lambda: folder)
    return folder


def quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def commit_all(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--no-gpg-sign", "--message", "all", env=IDENTITY)


def place(number: int, path: str = PATH) -> str:
    return path if number == ROOT else f"milestones/m{number}/{path}"


def version(root: Path, number: int, path: str = PATH) -> str:
    return (root / place(number, path)).read_text(encoding="utf-8")


def put(root: Path, number: int, text: str, path: str = PATH) -> None:
    (root / place(number, path)).write_text(text, encoding="utf-8")


def outcomes(carried: list[Carried]) -> list[tuple[int, str]]:
    return [(ROOT if entry.milestone is None else entry.milestone, entry.outcome) for entry in carried]


def carry_through(root: Path, fix: Fix, start: int) -> tuple[int, int]:
    """Make the fix in one version and carry it to all, solving each conflict on the way; merges and conflicts."""
    put(root, start, fix.versions[start].replace(fix.old, fix.new), fix.path)
    merges = conflicts = 0
    while carried := carry(root)[0]:
        write(root, *carry(root))
        met = [(number, outcome) for number, outcome in outcomes(carried) if outcome in ("merged", "conflict")]
        merges += len(met)
        for number, outcome in met:
            if outcome == "conflict":
                conflicts += 1
                put(root, number, fix.versions[number].replace(fix.old, fix.new), fix.path)
    return merges, conflicts


@pytest.mark.parametrize("name", FIXES)
def test_a_fix_flows_from_the_earliest_version_that_has_the_code(root: Path, name: str) -> None:
    fix = FIXES[name]
    assert carry_through(root, fix, fix.first) == fix.up
    for number, text in fix.versions.items():
        assert version(root, number, fix.path) == (text if number < fix.first else text.replace(fix.old, fix.new))


@pytest.mark.parametrize("name", FIXES)
def test_a_fix_at_the_root_flows_down_to_the_versions_that_have_the_code(root: Path, name: str) -> None:
    fix = FIXES[name]
    assert carry_through(root, fix, ROOT) == fix.down
    for number, text in fix.versions.items():
        assert version(root, number, fix.path) == text.replace(fix.old, fix.new)


def test_the_way_down_ends_where_the_code_is_not(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what merges still goes there: both versions begin with `class Scheduler`."""
    path = "folovllm/scheduler.py"
    text = SCHEDULER[ROOT].replace("0.02", "0.01")
    put(root, ROOT, text, path)
    assert outcomes(carry(root)[0]) == [(0, "absent"), (1, "merged"), (ROOT, "changed")]
    put(root, ROOT, f"import queue\n\n\n{text}", path)
    assert cli.main(["carry"]) == 0
    assert "without 1 of the changes, whose code is not here" in capsys.readouterr().out
    assert version(root, 1, path) == "import queue\n\n\n" + RESERVING.replace("0.02", "0.01")
    assert version(root, 0, path) == f"import queue\n\n\n{ADMIT}"


def test_a_change_of_code_that_is_written_otherwise_below_is_a_conflict(root: Path) -> None:
    path = "folovllm/scheduler.py"
    put(root, ROOT, SCHEDULER[ROOT].replace("self.fits(self.reserve())", "self.fits(self.reserve() + 1)"), path)
    assert outcomes(carry(root)[0])[-1:] == [(ROOT, "changed")]
    assert (1, "conflict") in outcomes(carry(root)[0])


def test_the_way_ends_at_a_conflict_and_goes_on_from_there_once_it_is_solved(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "folovllm/llm_engine.py"
    put(root, 0, RAISE.replace("taken", "in use"), path)
    assert cli.main(["carry"]) == 1
    printed, marked = capsys.readouterr().out, version(root, 1, path)
    assert f"<<<<<<< milestones/m1/{path}" in printed
    assert f"<<<<<<< milestones/m1/{path}" in marked
    assert f">>>>>>> milestones/m0/{path}" in marked
    assert version(root, 2, path) == ENGINE[2]

    assert cli.main(["carry"]) == 1  # not solved yet: the markers are not merged once more
    assert version(root, 1, path) == marked

    put(root, 1, LOCKED.replace("taken", "in use"), path)
    assert cli.main(["carry"]) == 0
    for number, text in ENGINE.items():
        assert version(root, number, path) == text.replace("taken", "in use")
    assert carry(root)[0] == []


def test_a_conflict_solved_at_the_root_is_the_end_of_the_way_up(root: Path) -> None:
    put(root, 2, words("good evening"))
    write(root, *carry(root))
    put(root, ROOT, words("welcome back"))
    assert outcomes(carry(root)[0])[2:] == [(2, "unchanged"), (ROOT, "changed")]


def test_what_is_changed_again_is_carried_from_what_was_carried(root: Path) -> None:
    put(root, 1, words("hello", limit=2))
    write(root, *carry(root))
    put(root, 1, words("hello", limit=3))
    write(root, *carry(root))
    assert version(root, 2) == words("good day", limit=3)
    assert version(root, ROOT) == words("welcome", limit=3)
    assert version(root, 0) == words("hi")


def test_what_was_taken_back_is_forgotten(root: Path) -> None:
    put(root, 1, words("hello", limit=2))
    write(root, *carry(root))
    git(root, "checkout", "--quiet", ".")
    assert carry(root)[0] == []
    put(root, 1, words("hello", limit=3))
    write(root, *carry(root))
    assert version(root, ROOT) == words("welcome", limit=3)


def test_fixes_in_two_versions_go_up_together(root: Path) -> None:
    put(root, 0, words("hi", limit=2))
    put(root, 1, words("hello").replace("+ name", "+ name.title()"))
    write(root, *carry(root))
    assert version(root, 1) == words("hello", limit=2).replace("+ name", "+ name.title()")
    assert version(root, ROOT) == words("welcome", limit=2).replace("+ name", "+ name.title()")
    assert version(root, 0) == words("hi", limit=2)


def test_a_copy_stored_just_now_keeps_the_change_above_it_from_going_down(root: Path) -> None:
    put(root, 2, "OTHER = 1\n", "folovllm/other.py")
    put(root, ROOT, "OTHER = 2\n", "folovllm/other.py")
    assert cli.main(["carry"]) == 0
    assert version(root, 2, "folovllm/other.py") == "OTHER = 1\n"


def test_a_dry_run_tells_and_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, ROOT, words("welcome", limit=9))
    assert cli.main(["carry", "--dry-run"]) == 0
    assert "merged" in capsys.readouterr().out
    assert version(root, 1) == words("hello")
    assert cli.main(["carry"]) == 0  # nothing was remembered either
    assert version(root, 1) == words("hello", limit=9)


def test_a_copy_that_became_equal_is_deleted_and_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, 1, words("good day"))  # what m2 has: m1's copy is needed no longer, m0's is
    cli.main(["carry"])
    assert "equal to the next version: deleted" in capsys.readouterr().out
    assert not (root / place(1)).exists()
    assert version(root, 0) == words("hi")


def test_a_moved_file_takes_its_copies_and_its_listings_along(root: Path) -> None:
    new = "folovllm/phrases.py"
    git(root, "mv", PATH, new)
    put(root, ROOT, words("welcome", limit=9), new)
    assert cli.main(["carry"]) == 0
    for number, greeting in enumerate(("hi", "hello", "good day")):
        assert version(root, number, new) == words(greeting, limit=9)
        assert not (root / place(number)).exists()
    assert Course.load(working_tree(root)).problems() == []
    assert carry(root)[0] == []


def test_the_base_may_be_an_earlier_commit(root: Path) -> None:
    put(root, ROOT, words("welcome", limit=9))
    commit_all(root)
    assert carry(root)[0] == []
    write(root, *carry(root, "HEAD~1"))
    assert version(root, 0) == words("hi", limit=9)


def test_only_the_paths_that_are_named_are_carried(root: Path) -> None:
    put(root, 1, words("hello", limit=9))
    assert carry(root, paths=["folovllm/other.py"])[0] == []
    met = [(0, "unchanged"), (1, "changed"), (2, "merged"), (ROOT, "merged")]
    assert outcomes(carry(root, paths=["folovllm/"])[0]) == met
    assert outcomes(carry(root, paths=["milestones/m1"])[0]) == met


def test_a_change_of_a_file_without_copies_carries_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "folovllm/other.py").write_text("OTHER = 2\n")
    assert cli.main(["carry"]) == 0
    assert "nothing to carry" in capsys.readouterr().out


def test_a_base_that_is_no_commit_is_refused(root: Path) -> None:
    with pytest.raises(MilestoneError, match="--base must name a commit, got 'yesterday'"):
        carry(root, "yesterday")
