"""The files that an index, GitHub and a citation read say the same as the project's own."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import folovllm
from workshop.first_hour_notebook import CODESPACE, COLAB, NOTEBOOK

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.always
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TEXTS = ("**/*.md", "folovllm/**/*.py", "examples/*", "workshop/**/*.py", "milestones/**/*.py", "mkdocs*.yml")

TEXT_CALLS = {"read_text": 0, "write_text": 1}  # after how many arguments the encoding comes


def read(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def test_the_address_of_the_repository_is_written_once() -> None:
    """A package page's links are made by patterns, which cannot read it."""
    address = PROJECT["urls"]["Repository"]
    owner, name = address.removeprefix("https://github.com/").split("/")
    site = f"https://{owner}.github.io/{name}/"
    assert all(url.startswith((address, site)) for url in PROJECT["urls"].values())
    for readme in ("README.md", "README.zh.md"):
        assert set(re.findall(r"https://[\w-]+\.github\.io/[\w-]+/", read(readme))) == {site}
    replacements = re.findall(r"^replacement = .*?https://[^/]+/([^/]+/[^/]+)/", read("pyproject.toml"), re.MULTILINE)
    assert replacements == [address.removeprefix("https://github.com/")] * 2


def test_the_first_hour_is_opened_where_notebooks_are() -> None:
    for text in ("README.md", "README.zh.md", "docs/en/first-hour.md", "docs/zh/first-hour.md"):
        assert read(text).count(f"]({COLAB})") == read(text).count(f"]({CODESPACE})") == 1, text
    container = read(".devcontainer/devcontainer.json")
    assert json.loads(container)["customizations"]["codespaces"]["openFiles"] == [str(NOTEBOOK.relative_to(ROOT))]
    (extra,) = re.findall(r"make \.venv/\.installed-(\w+) ", container)
    assert extra in PROJECT["optional-dependencies"]


def test_one_version_with_one_date() -> None:
    version, date = re.findall(r"^## (\S+) · (\S+)$", read("CHANGELOG.md"), re.MULTILINE)[0]
    citation = yaml.safe_load(read("CITATION.cff"))
    assert version == PROJECT["version"] == folovllm.__version__ == citation["version"]
    assert date == str(citation["date-released"])


def test_what_is_new_is_read_in_one_screen() -> None:
    for section in read("CHANGELOG.md").split("\n## ")[1:]:
        assert len(section.splitlines()) <= 50, section.splitlines()[0]


def test_github_runs_every_gate_of_make_check() -> None:
    (gates,) = re.findall(r"^GATES = (.*)$", read("Makefile"), re.MULTILINE)
    workflow = yaml.safe_load(read(".github/workflows/tests.yml"))
    assert {"test", "wheel", *workflow["jobs"]["gate"]["strategy"]["matrix"]["gate"]} == set(gates.split())
    release = yaml.safe_load(read(".github/workflows/release.yml"))
    for job in (workflow["jobs"]["test"], release["jobs"]["wheel"]):
        assert any(str(step.get("run")).startswith("make wheel") for step in job["steps"])
        pythons = job["strategy"]["matrix"]["python"]
        assert pythons == re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def test_only_a_tag_that_was_proven_is_published() -> None:
    jobs = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]
    assert (jobs["publish"]["if"], jobs["publish"]["needs"]) == ("github.ref_type == 'tag'", ["build", "wheel"])
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    (twine,) = re.findall(r"^twine==(\S+)$", read("constraints.txt"), re.MULTILINE)
    assert f"pip install twine=={twine}\n" in read(".github/workflows/release.yml")


def test_each_action_is_one_version_by_its_hash() -> None:
    used = [
        line
        for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
        for line in re.findall(r"uses: (.*)", path.read_text("utf-8"))
    ]
    assert len(used) > 15
    assert [line for line in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    assert len(set(used)) == len({line.partition("@")[0] for line in used})


def test_the_hook_runs_the_ruff_of_the_constraints() -> None:
    (ruff,) = re.findall(r"^ruff==(\S+)$", read("constraints.txt"), re.MULTILINE)
    assert f"rev: v{ruff}\n" in read(".pre-commit-config.yaml")


def test_few_texts_install_from_the_index() -> None:
    """It has the releases only, from the first that a tag published: who reads a page wants what the page shows."""
    texts = {path for pattern in TEXTS for path in ROOT.glob(pattern) if ".venv" not in path.parts and path.is_file()}
    assert len(texts) > 400
    found = {path for path in texts if re.search(rb"install(?: -\S+)* '?folovllm\b(?!(\[\w+\])? @)", path.read_bytes())}
    both_ways = ("README.md", "README.zh.md", "folovllm/entrypoints/cli/parser.py")
    assert {str(path.relative_to(ROOT)) for path in found} == set(both_ways)


def test_every_text_file_is_opened_with_an_encoding() -> None:
    """ruff's PLW1514 finds what it knows for a path; this finds read_text() and write_text() of whatever it is."""
    parts = ("folovllm", "milestones", "workshop", "examples")
    paths = [path for part in parts for path in ROOT.glob(f"{part}/**/*.py")]
    paths = [path for path in paths if "tests" not in path.parts[len(ROOT.parts) :]]
    assert len(paths) > 400
    for path in paths:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TEXT_CALLS:
                given = {word.arg for word in node.keywords}
                assert len(node.args) > TEXT_CALLS[node.func.attr] or "encoding" in given, f"{path}:{node.lineno}"
