"""What a page shows is run, or says why not; this reads the pages, `python -m milestones.run_snippets` runs them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from milestones import run_snippets
from milestones.site import snippets

PAGE = """\
# Page {#page}

```python
x = 1
```

- a list

    ```bash
    python -m milestones list  # all of them
    python - <<'EOF'
    print("a ' quote", "python -m milestones")
    EOF
    for i in 1 2; do
      echo $i
    done
    folovllm bench step \\
      --json x.json
    ```

<!-- not run: gpu -->

```python
torch.zeros(1, device="cuda")
```

```text
python -m gone
```
"""


def test_blocks_come_without_their_indentation_and_with_their_marker() -> None:
    python, bash, marked = snippets.blocks(PAGE)
    assert (python.line, python.code, python.marker) == (3, "x = 1\n", None)
    assert bash.code.startswith("python -m milestones list  # all of them\npython - <<'EOF'\nprint(")
    assert (marked.language, marked.marker) == ("python", "gpu")


def test_a_command_stays_whole() -> None:
    bash = snippets.blocks(PAGE)[1]
    heads = [command.splitlines()[0] for command in snippets.statements(bash.code)]
    assert heads == [
        "python -m milestones list  # all of them",
        "python - <<'EOF'",
        "for i in 1 2; do",
        "folovllm bench step \\",
    ]


def test_what_takes_minutes_is_checked_and_the_rest_is_run() -> None:
    plan = snippets.plan(PAGE)
    assert [how for _, _, how in plan.checks] == ["milestones", "folovllm"]
    [(line, script)] = plan.bash
    assert line == 9
    assert "echo $i" in script
    assert "bench" not in script
    assert plan.marked == 1


def test_a_marker_without_one_of_the_reasons_is_a_problem() -> None:
    plan = snippets.plan("<!-- not run: tired -->\n```python\nx\n```\n")
    assert plan.problems == [(2, "not run: tired? The reasons are gpu, network, minutes, fragment")]


def test_a_marker_holds_for_the_next_block_only() -> None:
    blocks = snippets.blocks("<!-- not run: gpu -->\n\nText.\n\n```python\nx\n```\n")
    assert [block.marker for block in blocks] == [None]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("folovllm bench step --json x.json", None),
        ("folovllm bench step --jsonn x.json", "unrecognized arguments: --jsonn x.json"),
        ("folovllm bench stop", "invalid choice: 'stop'"),
        ("OMP_NUM_THREADS=1 .venv/bin/python -m milestones bench m1 m2  # both", None),
        ("python -m milestones bensh m1", "invalid choice: 'bensh'"),
        ("python -m tests.campaign --minutes 60", None),
        ("python -m tests.champagne", "there is no tests.champagne"),
        ("python -m pytest tests/m3 -q", None),
        ("python -m pytest tests/m3/test_gone.py -q", "tests/m3/test_gone.py does not exist"),
        ("make campaign MINUTES=60", None),
        ("make haste", "the Makefile has no haste"),
    ],
)
def test_a_command_that_is_not_run_has_its_words_checked(command: str, problem: str | None) -> None:
    how = snippets.check_of(command)
    assert how is not None
    found = run_snippets.check("docs/en/m3/index.md", command, how)
    assert problem in found if problem and found else found == problem


def test_a_script_that_differs_by_its_comments_only_runs_once() -> None:
    def key(language: str, code: str) -> tuple[str, str]:
        return run_snippets.Script("page", 1, language, code).key()

    assert key("python", "x = 1  # one\n") == key("python", "\nx = 1  # 一\n")
    assert key("python", "x = 1\n") != key("python", "x = 2\n")
    assert key("bash", "folovllm info  # what there is") == key("bash", "# 有什么\nfolovllm info")


def test_a_note_runs_in_its_milestone_s_tree() -> None:
    assert run_snippets.tree_of("docs/zh/m3/index.md") == "m3"
    assert run_snippets.tree_of("docs/en/architecture.md") == ""


def test_what_fails_is_named_with_its_page_and_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The server, the shim and the shell in one: a page in the repository's own tree."""
    page = """\
        ```python
        x = 1
        ```
        ```python
        print(y + x)
        ```
        ```bash
        cat > f.py <<'EOF'
        import sys
        sys.exit("no " + " ".join(sys.argv[1:]))
        EOF
        python -c "import sys; print(sys.argv)" a | grep "'a'"
        python f.py luck
        ```
        """
    (tmp_path / "page.md").write_text(textwrap.dedent(page), encoding="utf-8")
    monkeypatch.setattr(snippets, "pages", lambda root: [tmp_path / "page.md"])
    monkeypatch.setattr(run_snippets, "ROOT", tmp_path)
    monkeypatch.setattr(run_snippets, "_plant", lambda name, folder: folder.mkdir())
    monkeypatch.setattr(run_snippets, "MODULES", ("json",))
    assert run_snippets.run() == 1
    said = capfd.readouterr().err
    assert "page.md:1\n" in said
    assert 'File "<stdin>", line 5' in said  # the page's own line
    assert "name 'y' is not defined" in said
    assert "page.md:7\n" in said
    assert "no luck" in said
