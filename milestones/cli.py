"""The commands: list, show, checkout, diff, tag, verify. Bad input ends with one line and exit code 2."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from milestones import verify as verification
from milestones.chain import Course
from milestones.diffs import compare
from milestones.sources import commit, repository_root, uncommitted, working_tree
from milestones.spec import MilestoneError
from milestones.tags import tag_all
from milestones.trees import build_tree, checkout, count_lines

console = Console(highlight=False)
DESCRIPTION = "FoloVLLM, milestone by milestone."


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        return args.run(repository_root(), args)
    except MilestoneError as error:
        Console(stderr=True, highlight=False).print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m milestones", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="the milestones there are")
    command.set_defaults(run=run_list)

    command = commands.add_parser("show", help="what arrives at a milestone")
    command.add_argument("milestone", metavar="mK")
    command.set_defaults(run=run_show)

    command = commands.add_parser("checkout", help="write a milestone into a folder of its own")
    command.add_argument("milestone", metavar="mK")
    command.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder")
    command.set_defaults(run=run_checkout)

    command = commands.add_parser("diff", help="what changed between two milestones")
    command.add_argument("old", metavar="mA")
    command.add_argument("new", metavar="mB")
    command.add_argument("path", metavar="PATH", nargs="?", help="only this file or folder")
    command.add_argument("--stat", action="store_true", help="only the number of lines, file by file")
    command.set_defaults(run=run_diff)

    command = commands.add_parser("tag", help="make the git tags m0, m1, … from what HEAD holds")
    command.set_defaults(run=run_tag)

    command = commands.add_parser("verify", help="check each milestone of the working tree; run its tests")
    command.add_argument("milestones", metavar="mK", nargs="*", help="only these (default: all)")
    command.add_argument("--static", action="store_true", help="run nothing: chain, names and exercises only")
    command.add_argument(
        "--all", action="store_true", help="run the newest milestone's tests too (`make test` runs the same)"
    )
    command.set_defaults(run=run_verify)
    return parser


def run_list(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    table = grid("", "milestone", "里程碑", "files", "lines of Python", "exercises")
    for m in course.milestones:
        tree = course.tree(m.number)
        package = sum(path.startswith("folovllm/") for path in tree)
        sizes = (str(package), f"{count_lines(tree):,}", str(len(m.exercises)))
        table.add_row(m.id, m.title["en"], m.title["zh"], *sizes)
    console.print(table)
    console.print("\nfiles and lines are those of folovllm/. Next: python -m milestones show m0", style="dim")
    return 0


def run_show(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    m = course.get(args.milestone)
    console.print(Text(f"{m.label} · {m.title['zh']}", style="bold"))
    console.print(Text(m.summary["en"]))
    console.print(Text(m.summary["zh"]))
    arriving = course.arriving(m.number)
    tree = course.tree(m.number)
    tops = {"tests": "tests/", "examples": "examples/", "notes": "docs/"}
    groups = {heading: [p for p in arriving if p.startswith(top)] for heading, top in tops.items()}
    rest = [p for p in arriving if not p.startswith(tuple(tops.values()))]
    for heading, paths in {"files": rest, **groups, "changes": course.changed(m.number)}.items():
        if paths:
            console.print(Text(f"\n{heading}", style="bold"))
            for path in paths:
                lines = tree[path].data.count(b"\n") if path.endswith((".py", ".md")) else None
                size = "" if lines is None else f"{lines:>5} lines"
                console.print(Text(f"  {path:<52}{size}"), soft_wrap=True)
    if m.exercises:
        console.print(Text("\nexercises", style="bold"))
        for exercise in m.exercises:
            console.print(Text(f"  {exercise.id:<16}{exercise.file}  {exercise.name}"))
            console.print(Text(f"{'':18}{exercise.task['en']}"))
    console.print(f"\nNext: python -m milestones checkout {m.id} ../{m.id}", style="dim")
    return 0


def run_checkout(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    milestone = course.get(args.milestone)
    count = checkout(course, milestone, args.folder)
    done = f"{milestone.label}: {count} files in {args.folder}, committed. Its README.md says how to run it."
    console.print(Text(done), soft_wrap=True)
    return 0


def run_diff(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    old, new = course.get(args.old), course.get(args.new)
    changes = compare(build_tree(course, old), build_tree(course, new), args.path)
    if args.stat:
        table = grid("path", "added", "removed")
        for change in changes:
            added, removed = change.added_and_removed()
            counts = (Text(f"+{added}", style="green"), Text(f"-{removed}", style="red"))
            table.add_row(Text(change.path), *counts)
        console.print(table)
        return 0
    text = "".join(line for change in changes for line in change.lines())
    if console.is_terminal:
        console.print(Syntax(text, "diff", background_color="default"))
    else:
        sys.stdout.write(text)
    return 0


def run_tag(root: Path, args: argparse.Namespace) -> int:
    """Tags come from HEAD, never from uncommitted work, so that a tag always has a commit behind it."""
    course = Course.load(commit(root, "HEAD"))
    if problems := course.problems():
        raise MilestoneError("HEAD cannot be tagged:\n  " + "\n  ".join(problems))
    for tag in tag_all(root, course):
        console.print(f"{tag.name}  {tag.commit[:12]}  {tag.outcome}")
    if changed := uncommitted(root):
        some = f"{changed[0]} and {len(changed) - 1} more" if len(changed) > 1 else changed[0]
        note = f"note: the tags hold what HEAD holds; not in them, because uncommitted: {some}"
        console.print(Text(note, style="yellow"), soft_wrap=True)
    console.print("Next: git worktree add ../m0 m0, or git diff m0 m1", style="dim")
    return 0


def run_verify(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    chosen = verification.choose(course, args.milestones)
    problems = course.problems()
    if args.static:
        results = [verification.Result(m, note="static only") for m in chosen]
        for result in results:
            result.problems += verification.static_problems(course, result.milestone)
    else:
        with console.status("") as status:

            def progress(text: str) -> None:
                status.update(text)
                if not console.is_terminal:
                    console.print(text)

            results = verification.verify(root, course, chosen, run_all=args.all, progress=progress)
    return print_results(problems, results)


def print_results(problems: list[str], results: list[verification.Result]) -> int:
    table = grid("", "result", "modules", "tests", "seconds", "")
    for r in results:
        verdict = Text("failed", style="red") if r.problems else Text("passed", style="green")
        table.add_row(r.milestone.id, verdict, str(r.modules), str(r.tests), f"{r.seconds:.1f}", r.note)
    lines = [*problems, *(f"{r.milestone.id}: {p}" for r in results for p in r.problems)]
    for line in lines:
        console.print(Text(f"error: {line}", style="red"), soft_wrap=True)
    console.print(table)
    chain = f"{len(problems)} problems" if problems else "in order"
    console.print(f"the chain of stored versions: {chain}")
    return 1 if lines else 0


def grid(*headings: str) -> Table:
    return Table(*headings, box=None, pad_edge=False)
