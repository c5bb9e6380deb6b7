"""What a page shows is run, or says why not; this reads the pages, `python -m milestones.run_snippets` runs them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from milestones import run_snippets
from milestones.site import snippets

PAGE = """\
# Page

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
    folovllm bench decode \\
      --json x.json
    ```

<!-- not run: gpu -->

```python
torch.zeros(1, device="cuda")
```

```text
python -m gone
```

<!-- code pkg/thing.py f -->

```python
def f(): ...
```

<!-- end -->
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
        "folovllm bench decode \\",
    ]


def test_what_takes_minutes_is_checked_and_the_rest_is_run() -> None:
    plan = snippets.plan(PAGE)
    assert [how for _, _, how in plan.checks] == ["milestones", "folovllm"]
    [script] = plan.bash
    assert script.line == 9
    assert "echo $i" in script.code
    assert "bench" not in script.code
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
        ("folovllm bench latency --json x.json", None),
        ("folovllm bench latency --jsonn x.json", "unrecognized arguments: --jsonn x.json"),
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


def test_only_text_straight_behind_code_is_what_it_prints() -> None:
    code = "```python\nprint(1)\n```\n"
    straight, drawing = "\n```text\n1\n```\n", "\nLook:\n\n```text\n─▶\n```\n"
    found = [block.output for block in snippets.blocks(code + straight + drawing + code + drawing + code)]
    assert found == [snippets.Output(5, "1\n"), None, None]


def test_in_a_list_what_is_printed_has_no_indentation() -> None:
    page = "- a list\n\n    ```bash\n    seq 2\n    ```\n\n    ```text\n    1\n    2\n    ```\n"
    [block] = snippets.blocks(page)
    assert block.output == snippets.Output(7, "1\n2\n")


def test_what_one_block_prints_has_commands_that_all_run() -> None:
    plan = snippets.plan("```bash\nmake test\nseq 2\n```\n\n```text\n1\n2\n```\n")
    assert plan.problems == [(6, "cannot be held: of the commands above it some are not run")]


def test_a_mark_of_what_is_printed_that_nobody_knows_is_a_problem() -> None:
    plan = snippets.plan("```bash\nseq 1\n```\n\n```text {.machines}\n1\n```\n")
    assert plan.problems == [(5, "text {.machines}? The one mark is {.machine}")]


def test_the_counts_of_a_decode_step_are_counted() -> None:
    assert snippets.check_of("python -m milestones path m1 m3") is None
    assert snippets.check_of("python -m milestones list") == "milestones"


Gate = Callable[..., int]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The server, the shim and the shell in one, on pages in a repository of their own."""
    monkeypatch.setattr(run_snippets, "ROOT", tmp_path)
    monkeypatch.setattr(run_snippets, "_plant", lambda name, folder: folder.mkdir())
    monkeypatch.setattr(run_snippets, "MODULES", ("json",))

    def run(pages: dict[str, str], share: int = 1) -> int:
        for name, text in pages.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(textwrap.dedent(text), encoding="utf-8")
        monkeypatch.setattr(snippets, "pages", lambda root: [tmp_path / name for name in pages])
        return run_snippets.run(share=share)

    return run


def test_what_fails_is_named_with_its_page_and_its_last_words(gate: Gate, capfd: pytest.CaptureFixture[str]) -> None:
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
    assert gate({"page.md": page}) == 1
    said = capfd.readouterr().err
    assert "page.md:1\n" in said
    assert 'File "<stdin>", line 5' in said  # the page's own line
    assert "name 'y' is not defined" in said
    assert "page.md:7\n" in said
    assert "no luck" in said


NOTE = """\
    ```python
    steps = 52
    print("steps", steps)
    ```

    ```text
    steps 52
    ```

    ```python
    print("hits", 2 * steps)  # a comment
    ```

    ```text
    hits 104
    ```

    ```bash
    seq 7 8
    python -c 'print("blocks", 9)'
    ```

    ```text
    7
    8
    blocks 9
    ```
    """


def test_both_languages_are_held_by_one_run(gate: Gate, capfd: pytest.CaptureFixture[str]) -> None:
    assert gate({"docs/en/note.md": NOTE, "docs/zh/note.md": NOTE.replace("a comment", "注释")}) == 0
    assert "2 scripts ran for 4 shown, 6 outputs held" in capfd.readouterr().out


def test_of_the_pages_a_share_is_run_in_both_languages(gate: Gate, capfd: pytest.CaptureFixture[str]) -> None:
    pages = {
        f"docs/{language}/{number}.md": NOTE.replace("52", str(number)).replace("104", str(2 * number))
        for number in range(61, 67)
        for language in ("en", "zh")
    }
    assert gate(pages, share=3) == 0
    assert "3 scripts ran for 8 shown" in capfd.readouterr().out  # the bash is the same on all


def test_the_terminal_of_whoever_runs_the_gate_changes_nothing(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    code = "from rich.console import Console\nConsole().print('[red]word' + ' word' * 15)\n"
    assert gate({"page.md": f"```python\n{code}```\n\n```text\nword{' word' * 15}\n```\n"}) == 0


def test_a_block_that_never_ran_has_printed_nothing(gate: Gate) -> None:
    note = NOTE.replace("steps = 52", "steps = 52; print('steps 52', flush=True); import os; os._exit(0)")
    assert gate({"page.md": note}) == 1


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("figure", "line"), [("steps 52", 6), ("hits 104", 14), ("    8", 23), ("blocks 9", 23)])
def test_one_changed_figure_in_one_language_fails(
    gate: Gate, capfd: pytest.CaptureFixture[str], language: str, figure: str, line: int
) -> None:
    pages = {"docs/en/note.md": NOTE, "docs/zh/note.md": NOTE}
    page = f"docs/{language}/note.md"
    pages[page] = NOTE.replace(f"{figure}\n", f"{figure}0\n")
    assert gate(pages) == 1
    said = capfd.readouterr()
    assert f"{page}:{line}\n" in said.err
    assert f"-{figure.strip()}0\n" in said.err
    assert f"+{figure.strip()}\n" in said.err
    assert " 1 problems" in said.out


@pytest.mark.parametrize("language", ["en", "zh"])
def test_on_a_machine_s_block_a_changed_word_fails_and_a_changed_figure_does_not(gate: Gate, language: str) -> None:
    note = NOTE.replace("```text\n    steps", "```text {.machine}\n    steps")
    page = f"docs/{language}/note.md"
    assert gate({page: note.replace("steps 52\n", "steps 1,052.5\n")}) == 0
    assert gate({page: note.replace("steps 52\n", "stops 52\n")}) == 1
