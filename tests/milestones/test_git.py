"""Checkout and tags: what git sees of a milestone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from milestones.chain import Course
from milestones.sources import IDENTITY, commit, git, uncommitted, working_tree
from milestones.spec import MilestoneError
from milestones.tags import tag_all
from milestones.trees import checkout
from tests.milestones.conftest import FILES


def out(root: Path, *args: str) -> str:
    return git(root, *args).decode().strip()


def tag(root: Path) -> list[str]:
    """Tag HEAD; the outcome of each tag."""
    return [t.outcome for t in tag_all(root, Course.load(commit(root)))]


def test_a_commit_and_its_clean_working_tree_read_the_same(repository: Path) -> None:
    assert commit(repository) == working_tree(repository)
    assert set(commit(repository)) == set(FILES)


def test_a_new_file_counts_unless_it_is_ignored(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.log\n")
    (repository / "x.log").write_text("")
    (repository / "x.py").write_text("")
    assert set(working_tree(repository)) - set(FILES) == {".gitignore", "x.py"}
    assert uncommitted(repository) == [".gitignore", "x.py"]


def test_a_checkout_is_a_repository_with_one_clean_commit(repository: Path, tmp_path: Path) -> None:
    course = Course.load(working_tree(repository))
    folder = tmp_path / "new" / "m0"
    count = checkout(course, course.get("m0"), folder)
    assert out(folder, "status", "--porcelain") == ""
    assert out(folder, "log", "--format=%s") == "M0: Ground"
    files = out(folder, "ls-files").split("\n")
    assert len(files) == count
    assert sorted(files) == sorted([*course.tree(0), "README.md"])
    assert (folder / "folovllm/__init__.py").read_text() == "VERSION = 0\n"
    assert "FoloVLLM M0: Ground" in (folder / "README.md").read_text(encoding="utf-8")


def test_a_checkout_never_writes_into_a_folder_with_files(repository: Path, tmp_path: Path) -> None:
    course = Course.load(working_tree(repository))
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(MilestoneError, match=r"^DIR must be new or empty, but .* has files in it"):
        checkout(course, course.get("m0"), tmp_path)
    with pytest.raises(MilestoneError, match=r"^DIR must be a folder, but .*mine is a file"):
        checkout(course, course.get("m0"), tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "precious"


def test_tagging_again_changes_nothing_and_new_content_moves_the_tags(repository: Path) -> None:
    tag(repository)
    assert tag(repository) == ["unchanged", "unchanged"]
    (repository / "folovllm/engine.py").write_text("class Engine: ...\n")
    git(repository, "commit", "--quiet", "--no-gpg-sign", "--all", "--message", "change", env=IDENTITY)
    assert tag(repository) == ["unchanged", "moved"]


def test_tags_are_annotated_and_linear_and_touch_nothing_else(repository: Path) -> None:
    before = (out(repository, "rev-parse", "HEAD"), (repository / ".git/index").read_bytes())
    tag(repository)
    assert (out(repository, "rev-parse", "HEAD"), (repository / ".git/index").read_bytes()) == before
    assert out(repository, "status", "--porcelain") == ""
    assert out(repository, "cat-file", "-t", "m1") == "tag"
    assert out(repository, "rev-parse", "m1^{commit}^") == out(repository, "rev-parse", "m0^{commit}")
    assert out(repository, "rev-list", "--count", "m1") == "2"
    assert out(repository, "log", "--format=%an|%at", "m0") == "FoloVLLM milestones|1767225600"


def test_someone_elses_tag_is_left_alone(repository: Path) -> None:
    git(repository, "tag", "m1")
    with pytest.raises(MilestoneError, match=r"a tag m1 exists .* git tag -d m1"):
        tag(repository)
    assert out(repository, "cat-file", "-t", "m1") == "commit"
    assert out(repository, "tag", "--list") == "m1"


def test_a_path_that_is_not_ascii_survives_a_tag(repository: Path) -> None:
    (repository / "docs/zh/m0/注意.md").write_text("# 注意\n", encoding="utf-8")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--no-gpg-sign", "--message", "more", env=IDENTITY)
    tag(repository)
    shown = subprocess.run(["git", "show", "m0:docs/zh/m0/注意.md"], cwd=repository, capture_output=True, check=True)
    assert shown.stdout.decode("utf-8") == "# 注意\n"


def test_gits_own_words_reach_the_reader(tmp_path: Path) -> None:
    with pytest.raises(MilestoneError, match=r"git ls-tree failed: .*not a git repository"):
        commit(tmp_path)


def test_without_git_and_in_an_archive_the_files_are_read_from_the_disk(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = working_tree(repository)
    for left in (".venv/lib/x.py", "folovllm/__pycache__/base.pyc", ".DS_Store"):
        (repository / left).parent.mkdir(parents=True, exist_ok=True)
        (repository / left).write_text("")
    shutil.copytree(repository, tmp_path / "archive", ignore=shutil.ignore_patterns(".git"))
    assert working_tree(tmp_path / "archive") == before
    monkeypatch.setenv("PATH", str(tmp_path))
    assert working_tree(repository) == before
