"""What the tool shows as tables, by rich. `tag` and `checkout` print plain lines instead and need no
package at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from folovllm.entrypoints.cli.console import PlainConsole
from milestones import size
from milestones.carry import Carried
from milestones.chain import Course
from milestones.diffs import Change
from milestones.labs.exercise import load_exercises
from milestones.labs.prove import Proof
from milestones.path import Walk
from milestones.size import Row, Size
from milestones.sources import Snapshot
from milestones.spec import NOTES, Milestone, MilestoneError
from milestones.steps import stages
from milestones.tree_runner import Result
from milestones.trees import build_tree, count_lines, run_commands

console = PlainConsole()


def grid(*headings: str) -> Table:
    return Table(*headings, box=None, pad_edge=False)


def print_list(course: Course) -> None:
    table = grid("", "milestone", "里程碑", "files", "lines of Python", "exercises")
    for m in course.milestones:
        tree = course.tree(m.number)
        package = sum(path.startswith("folovllm/") for path in tree)
        exercises = load_exercises(course.snapshot, m.number)
        sizes = (str(package), f"{count_lines(tree):,}", str(len(exercises)))
        table.add_row(m.id, m.title["en"], m.title["zh"], *sizes)
    console.print(table)
    console.print("\nfiles and lines are those of folovllm/. Next: python -m milestones read m0", style="dim")


def print_steps(course: Course, m: Milestone, number: int | None) -> None:
    """What a milestone is, and the commits that lead to it, or one of them: the idea, what to run, the diff of code and
    tests.

    Raises:
        MilestoneError: there is no such step.
    """
    row, tree = stages(course, m), course.tree(m.number)
    if number is not None and not 1 <= number <= len(row):
        raise MilestoneError(f"STEP must be 1 to {len(row)}, as {m.id} has so many, got {number}")
    before: Snapshot = build_tree(course, course.milestones[m.number - 1]) if m.number else {}
    with _paged():
        if number is None:
            console.print(Text(f"{m.label} · {m.title['zh']}", style="bold"))
            console.print(Text(f"{m.summary['en']}\n{m.summary['zh']}\n"), soft_wrap=True)
            rows = {"run": run_commands(m, tree)[:1], "expect": m.expect.splitlines()}
            for heading, lines in rows.items():
                for at, line in enumerate(lines):
                    console.print(Text.assemble((f"{'' if at else heading:<8}", "bold"), line), soft_wrap=True)
            console.print(f"in      a checkout: python -m milestones checkout {m.id} ../{m.id}\n", style="dim")
            for stage in row:
                console.print(Text(f"  {stage.label}  {stage.step.title}  ({stage.lines:,} lines)"), soft_wrap=True)
            console.print()
        for stage in row:
            if number in (None, stage.number):
                step = stage.step
                console.print(Text(f"{stage.label} {step.title}", style="bold"))
                console.print(Text(f"\n{step.body}\n"))
                console.print(Text(f"read first: {', '.join(step.read)}\nsee it:     {step.show}\n"), soft_wrap=True)
                changes = [Change(path, before.get(path), stage.tree.get(path)) for path in stage.paths]
                code = [change for change in changes if not change.path.startswith(NOTES)]
                print_patch("".join(line for change in code for line in change.lines()))
            before = stage.tree


@contextmanager
def _paged() -> Iterator[None]:
    """At a terminal, what is longer than the screen comes page by page, as git's diffs do."""
    if not console.is_terminal:
        yield
        return
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True):
        yield


def print_patch(text: str) -> None:
    console.print(Syntax(text, "diff", background_color="default"))


def print_stat(changes: list[Change]) -> None:
    table = grid("path", "added", "removed")
    for change in changes:
        added, removed = change.added_and_removed()
        counts = (Text(f"+{added}", style="green"), Text(f"-{removed}", style="red"))
        table.add_row(Text(change.path), *counts)
    console.print(table)


def print_walks(walks: list[Walk], *, files: bool, functions: bool) -> None:
    for walk in walks:
        if files:
            console.print(Text(f"{walk.milestone}: files of the whole way, with their lines", style="bold"))
            for path, lines in sorted(walk.file_lines.items(), key=lambda item: -item[1]):
                console.print(Text(f"  {path:<44}{lines:>6}"))
        if functions:
            console.print(Text(f"{walk.milestone}: functions of a decode step, with their calls", style="bold"))
            for path, calls in walk.function_calls.items():
                console.print(Text(f"  {path}"))
                for name, number in calls.items():
                    console.print(Text(f"    {name:<56}{number:>6}"))
    table = grid()
    for heading in ("", "files", "functions", "calls", "switches", "", "files", "lines", "run", "code", "package"):
        table.add_column(heading, justify="right", no_wrap=True)
    for w in walks:
        step = (str(w.files), str(w.functions), str(w.calls), str(w.switches))
        way = (str(w.way_files), f"{w.way_lines:,}", f"{w.function_lines:,}", f"{w.code_lines:,}")
        table.add_row(w.milestone, *step, "│", *way, f"{w.package_lines:,}")
    console.print(table)
    for line in (
        "left: one decode step. A switch is a call into another file than that of the call before.",
        "right: a request's whole way (add, prefill, decode, end): files, all their lines; lines of the functions",
        "that run, without blank ones; of these the code, without comments and docstrings. package: all of folovllm/.",
    ):
        console.print(line, style="dim", soft_wrap=True)


def print_sizes(rows: list[Row]) -> bool:
    """What there is beside what there may be; whether every limit holds."""
    fields = {"lines": "lines", "files": "files", "cpp": "C++", "step_files": "files", "step_functions": "functions"}
    table = grid("", *fields.values())
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        limit = size.LIMITS.get(row.name, Size())
        table.add_row(row.name, *(_of_limit(getattr(row.size, field), getattr(limit, field)) for field in fields))
    console.print(table)
    console.print(
        "\nPython and C++ of folovllm/, with the most that there may be; then what a decode step enters.", style="dim"
    )
    excesses = [line for row in rows for line in row.excesses()]
    for line in [line for row in rows for line in row.beyond() if line not in excesses]:
        console.print(Text(f"not met yet: {line}", style="yellow"), soft_wrap=True)
    for line in excesses:
        console.print(Text(f"error: {line}", style="red"), soft_wrap=True)
    return not excesses


def _of_limit(number: int | None, most: int | None) -> Text:
    if number is None:
        return Text("")
    style = "" if most is None else "green" if number <= most else "red"
    return Text.assemble((f"{number:,}", style), "" if most is None else f" of {most:,}")


def print_carried(carried: list[Carried], *, dry_run: bool) -> None:
    """What did not merge first, line by line; the table last."""
    for entry in carried:
        if entry.conflict:
            console.print(Text(entry.stored, style="bold red"), soft_wrap=True)
            console.print(Text(entry.conflict + "\n"), soft_wrap=True)
    if not carried:
        console.print("nothing to carry: no file that you changed has other versions, or all of it is carried")
        return
    colors = {"changed": "bold", "merged": "green", "unchanged": "dim", "absent": "dim"}
    colors |= {"conflict": "red", "waiting": "yellow"}
    table = grid("path", "milestone", "", "")
    for entry in carried:
        notes = [f"renamed from {entry.renamed_from}"] if entry.renamed_from else []
        notes += ["equal to the next version: deleted"] if entry.equal else []
        notes += [f"without {entry.left_out} of the changes, whose code is not here"] if entry.left_out else []
        outcome = Text(entry.outcome, style=colors[entry.outcome])
        name = "root" if entry.milestone is None else f"m{entry.milestone}"
        table.add_row(Text(entry.path), name, outcome, Text("; ".join(notes)))
    console.print(table)
    if dry_run:
        console.print("\n--dry-run: nothing was written", style="dim")
    elif any(entry.conflict for entry in carried):
        console.print("\nSolve each conflict in its file, then run `carry` again: it goes on from there.")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line that says what is going on: in place on a terminal, one under the other in a log."""
    with console.status("") as status:

        def show(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(text)

        yield show


def print_results(problems: list[str], results: list[Result]) -> bool:
    """The final table; whether all is well."""
    lines = [*problems, *(f"{r.name}: {p}" for r in results for p in r.problems)]
    for line in lines:
        console.print(Text(f"error: {line}", style="red"), soft_wrap=True)
    table = grid("", "result", "modules", "tests", "seconds", "")
    for r in results:
        verdict = Text("failed", style="red") if r.problems else Text("passed", style="green")
        table.add_row(r.name, verdict, str(r.modules), str(r.tests), f"{r.seconds:.1f}", r.note)
    console.print(table)
    chain = f"{len(problems)} problems" if problems else "in order"
    console.print(f"the chain of stored versions: {chain}")
    return not lines


def print_proofs(proofs: list[Proof], problems: list[str]) -> bool:
    """What proving the exercises found; whether all is well."""
    lines = [*problems, *(problem for proof in proofs for problem in proof.problems)]
    for line in lines:
        console.print(Text(f"error: {line}", style="red"), soft_wrap=True)
    table = grid("exercise", "result", "tests", "wrong solutions", "mutants", "a check takes")
    for proof in proofs:
        verdict = Text("failed", style="red") if proof.problems else Text("proved", style="green")
        sizes = (str(proof.tests), str(len(proof.exercise.wrong)), str(proof.mutants), f"{proof.seconds:.1f} s")
        table.add_row(proof.exercise.id, verdict, *sizes)
    console.print(table)
    return not lines
