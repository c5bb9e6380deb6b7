"""`python -m milestones carry`, on a repository of three milestones in which one file has three versions.

    m0  GREETING = "hi"      m1  GREETING = "hello"      the root, m2  GREETING = "welcome"

Far from that line stands `LIMIT = 1`, the same in each, and between them enough to keep two changes apart.
"""

from __future__ import annotations

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


def words(greeting: str, limit: int = 1) -> str:
    return f'GREETING = "{greeting}"\n\n\ndef greet(name):\n    return GREETING + name\n\n\nLIMIT = {limit}\n'


@pytest.fixture
def root(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "repository"
    files = {
        PATH: words("welcome"),
        f"milestones/m1/{PATH}": words("hello"),
        f"milestones/m0/{PATH}": words("hi"),
        "folovllm/other.py": "OTHER = 1\n",
        "milestones/m0/milestone.toml": SPEC % (f'"{PATH}", "folovllm/other.py"', ""),
        "milestones/m1/milestone.toml": SPEC % ("", f'"{PATH}"'),
        "milestones/m2/milestone.toml": SPEC % ("", f'"{PATH}"'),
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    git(folder, "init", "--quiet", "--template=")
    commit_all(folder)
    monkeypatch.setattr(cli, "repository_root", lambda: folder)
    return folder


def commit_all(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--no-gpg-sign", "--message", "all", env=IDENTITY)


def outcomes(carried: list[Carried]) -> list[tuple[int, str]]:
    return [(entry.milestone, entry.outcome) for entry in carried]


def stored(root: Path, number: int, path: str = PATH) -> str:
    return (root / f"milestones/m{number}/{path}").read_text(encoding="utf-8")


def test_a_fix_reaches_every_version_and_leaves_what_is_theirs(root: Path):
    (root / PATH).write_text(words("welcome", limit=9))
    assert cli.main(["carry"]) == 0
    assert stored(root, 1) == words("hello", limit=9)
    assert stored(root, 0) == words("hi", limit=9)


def test_what_does_not_merge_is_named_and_left(root: Path, capsys):
    (root / PATH).write_text(words("good day"))
    assert cli.main(["carry"]) == 1
    printed = capsys.readouterr().out
    assert f"milestones/m0/{PATH}" in printed
    assert "<<<<<<< milestones/m0" in printed
    assert 'GREETING = "hi"' in printed
    assert 'GREETING = "good day"' in printed
    assert "LIMIT" not in printed
    assert stored(root, 1) == words("hello")
    assert stored(root, 0) == words("hi")


def test_one_version_in_conflict_does_not_keep_the_others_back(root: Path):
    text = words("hi").replace("LIMIT = 1", "LIMIT = 2")
    (root / f"milestones/m0/{PATH}").write_text(text)
    commit_all(root)
    (root / PATH).write_text(words("welcome", limit=9))
    carried = carry(root)
    assert outcomes(carried) == [(0, "conflict"), (1, "merged")]
    write(root, carried, markers=False)
    assert stored(root, 0) == text
    assert stored(root, 1) == words("hello", limit=9)


def test_markers_go_into_the_copy_when_asked_for_and_are_not_merged_again(root: Path):
    (root / PATH).write_text(words("good day"))
    assert cli.main(["carry", "--markers"]) == 1
    once = stored(root, 0)
    assert "<<<<<<< milestones/m0" in once
    assert ">>>>>>> the root" in once
    assert cli.main(["carry", "--markers"]) == 1
    assert stored(root, 0) == once


def test_a_dry_run_tells_and_writes_nothing(root: Path, capsys):
    (root / PATH).write_text(words("welcome", limit=9))
    assert cli.main(["carry", "--dry-run"]) == 0
    assert "merged" in capsys.readouterr().out
    assert stored(root, 1) == words("hello")


def test_a_second_run_changes_nothing(root: Path):
    (root / PATH).write_text(words("welcome", limit=9))
    write(root, carry(root), markers=False)
    assert outcomes(carry(root)) == [(0, "unchanged"), (1, "unchanged")]


def test_a_copy_that_became_equal_is_deleted_and_named(root: Path, capsys):
    (root / PATH).write_text(words("hello"))  # what m1 has: m1's copy is needed no longer, m0's is
    assert cli.main(["carry"]) == 1  # the same line in m0 is another one
    assert "equal to the next version: deleted" in capsys.readouterr().out
    assert not (root / f"milestones/m1/{PATH}").exists()
    assert stored(root, 0) == words("hi")


def test_a_moved_file_takes_its_copies_and_its_listings_along(root: Path):
    new = "folovllm/phrases.py"
    git(root, "mv", PATH, new)
    (root / new).write_text(words("welcome", limit=9))
    assert cli.main(["carry"]) == 0
    assert stored(root, 1, new) == words("hello", limit=9)
    assert stored(root, 0, new) == words("hi", limit=9)
    assert not (root / f"milestones/m1/{PATH}").exists()
    assert Course.load(working_tree(root)).problems() == []
    assert outcomes(carry(root)) == [(0, "unchanged"), (1, "unchanged")]


def test_the_base_may_be_an_earlier_commit(root: Path):
    (root / PATH).write_text(words("welcome", limit=9))
    commit_all(root)
    assert carry(root) == []
    write(root, carry(root, "HEAD~1"), markers=False)
    assert stored(root, 0) == words("hi", limit=9)


def test_only_the_paths_that_are_named_are_carried(root: Path):
    (root / PATH).write_text(words("welcome", limit=9))
    assert carry(root, paths=["folovllm/other.py"]) == []
    assert outcomes(carry(root, paths=["folovllm/"])) == [(0, "merged"), (1, "merged")]


def test_a_change_of_a_file_without_copies_carries_nothing(root: Path, capsys):
    (root / "folovllm/other.py").write_text("OTHER = 2\n")
    assert cli.main(["carry"]) == 0
    assert "nothing to carry" in capsys.readouterr().out


def test_a_base_that_is_no_commit_is_refused(root: Path):
    with pytest.raises(MilestoneError, match="--base must name a commit, got 'yesterday'"):
        carry(root, "yesterday")
