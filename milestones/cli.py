"""The commands for reading and for making; the learner's are in labs/commands.py. Bad input ends with one line and exit
code 2.

`tag`, `checkout` and a `diff` into a pipe need nothing but Python and git, so that they work in a clone
before anything is installed; the other commands draw tables with rich, which is imported where it is
needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shlex
import sys
from pathlib import Path

from milestones import carry, dormant, path, size
from milestones import verify as verification
from milestones.bench import command as bench_command
from milestones.chain import Course
from milestones.diffs import compare
from milestones.green import GreenRuns
from milestones.imports import check_syntax
from milestones.labs import prove
from milestones.labs.commands import add_commands
from milestones.labs.start import install_command
from milestones.sources import commit, repository_root, uncommitted, working_tree
from milestones.spec import MilestoneError
from milestones.steps import step_problems
from milestones.tags import tag_all
from milestones.trees import build_tree, checkout, run_commands

GROUPS = {
    "learn": "start watch check hint predict solution compare reset restore finish progress update",
    "read": "list read diff checkout tag path bench",
    "make": "carry verify prove size",
}


def main(argv: list[str] | None = None, root: Path | None = None) -> int:
    """root: the repository; None: this one."""
    words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if sys.stdout is None:
        print("error: stdout is closed: there is nowhere to print to", file=sys.stderr)
        return 2
    args = build_parser().parse_args(words)
    args.words = words
    try:
        code = args.run(repository_root() if root is None else root, args)
        sys.stdout.flush()  # here, where an error of it is caught
        return code
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (`| head`) has left; without this, the interpreter would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MilestoneError as error:
        print(f"error: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "torch", "transformers", "pytest"):
            raise
        needed = install_command(repository_root() if root is None else root)
        print(f"error: this command needs {error.name}: {needed}", file=sys.stderr)
    return 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m milestones",
        usage="%(prog)s COMMAND …",
        description="FoloVLLM, milestone by milestone.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", help=argparse.SUPPRESS, prog=parser.prog)

    command = commands.add_parser("list", help="the milestones there are")
    command.set_defaults(run=run_list)

    command = commands.add_parser("read", help="a milestone as its commits: one idea each, its diff, how to see it")
    command.add_argument("milestone", metavar="mK")
    command.add_argument("step", metavar="STEP", nargs="?", type=int, help="only this one (default: all)")
    command.set_defaults(run=run_read)

    command = commands.add_parser("checkout", help="write a milestone into a folder of its own")
    command.add_argument("milestone", metavar="mK")
    command.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder")
    command.set_defaults(run=run_checkout)

    add_commands(commands)

    command = commands.add_parser("diff", help="what changed between two milestones")
    command.add_argument("old", metavar="mA")
    command.add_argument("new", metavar="mB")
    command.add_argument(
        "path", metavar="PATH", nargs="?", default="folovllm", help="this file or folder (default: the engine; .: all)"
    )
    command.add_argument("--stat", action="store_true", help="only the number of lines, file by file")
    command.set_defaults(run=run_diff)

    command = commands.add_parser("carry", help="merge your change of one version of a file into the others")
    carry.add_options(command)
    command.set_defaults(run=run_carry)

    command = commands.add_parser("tag", help="make the git tags m0, m1, … from what HEAD holds")
    command.set_defaults(run=run_tag)

    command = commands.add_parser("verify", help="check each milestone of the working tree; run its tests")
    command.add_argument("milestones", metavar="mK", nargs="*", help="only these (default: all)")
    command.add_argument("--static", action="store_true", help="run nothing: chain, names, exercises, dormant code")
    command.add_argument("--steps", action="store_true", help="prove each step that leads to a milestone too")
    command.add_argument(
        "--all", action="store_true",
        help="run what is unchanged since its last green run too, and the newest milestone's tests (`make test` does)",
    )  # fmt: skip
    command.add_argument(
        "--share", metavar="N", type=int, choices=range(1, 10), default=1,
        help="test one tree and one step in N, with one file in 2N of the earlier milestones' tests (default: all)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, help="which of them (default: others each time)")
    command.set_defaults(run=run_verify)

    command = commands.add_parser("prove", help="prove exercises: blanked they fail, wrong ones are refused")
    command.add_argument("exercises", metavar="mK[/NAME]", nargs="*", help="only these (default: all)")
    command.add_argument(
        "--mutants",
        metavar="N",
        nargs="?",
        type=int,
        const=-1,
        default=0,
        help="small faults in the solutions are refused too: N of them (default: all)",
    )
    command.add_argument(
        "--share", metavar="N", type=int, choices=range(1, 10), default=1,
        help="judge one in N of the wrong and the right solutions (default: all)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, help="which of them (default: others each time)")
    command.add_argument("--record", action="store_true", help="write what each wrong solution answers: mistakes.json")
    command.set_defaults(run=run_prove)

    command = commands.add_parser("path", help="what one decode step enters: files, functions, calls")
    path.add_options(command)
    command.set_defaults(run=run_path)

    command = commands.add_parser("size", help="how large each milestone is, and how large it may get")
    command.add_argument("--no-steps", action="store_true", help="count lines and files only, in no time")
    command.set_defaults(run=run_size)

    command = commands.add_parser("bench", help="the same requests through several milestones: tokens/s")
    bench_command.add_options(command)
    command.set_defaults(run=bench_command.run)
    said = {action.dest: action.help for action in commands._choices_actions}  # argparse has no groups of commands
    for name, command in commands.choices.items():
        command.description = said[name]
    rows = {group: "\n".join(f"  {name:<10}{said[name]}" for name in names.split()) for group, names in GROUPS.items()}
    parser.epilog = "\n\n".join(f"{group}:\n{text}" for group, text in rows.items())
    return parser


def run_list(root: Path, args: argparse.Namespace) -> int:
    from milestones.report import print_list

    print_list(Course.load(working_tree(root)))
    return 0


def run_read(root: Path, args: argparse.Namespace) -> int:
    from milestones.report import print_steps

    course = Course.load(working_tree(root))
    print_steps(course, course.get(args.milestone), args.step)
    return 0


def run_checkout(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    milestone = course.get(args.milestone)
    count = checkout(course, milestone, args.folder)
    print(f"{milestone.label}: {count} files in {args.folder}, committed. Its README.md says how to run it.")
    first = run_commands(milestone, build_tree(course, milestone))[0]
    print(f"Next: cd {shlex.quote(str(args.folder))} && {first}")
    return 0


def run_diff(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    old, new = course.get(args.old), course.get(args.new)
    changes = compare(build_tree(course, old), build_tree(course, new), args.path)
    if args.stat:
        from milestones.report import print_stat

        print_stat(changes)
        return 0
    text = "".join(line for change in changes for line in change.lines())
    if sys.stdout.isatty():
        from milestones.report import print_patch

        print_patch(text)
    else:
        sys.stdout.write(text)
    return 0


def run_carry(root: Path, args: argparse.Namespace) -> int:
    from milestones.report import print_carried

    carried, memory = carry.carry(root, args.base, args.paths)
    if not args.dry_run:
        carry.write(root, carried, memory)
    print_carried(carried, dry_run=args.dry_run)
    return 1 if any(entry.outcome == "conflict" for entry in carried) else 0


def run_path(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    chosen = path.choose(course, args.milestones)
    walks = [path.measure(course, milestone, greedy=args.greedy) for milestone in chosen]
    if args.json:
        print(json.dumps([dataclasses.asdict(walk) for walk in walks], indent=2))
        return 0
    from milestones.report import print_walks

    print_walks(walks, files=args.files, functions=args.functions)
    return 0


def run_size(root: Path, args: argparse.Namespace) -> int:
    from milestones import report

    with report.progress() as progress:
        progress("counting what the milestones have, and what a decode step enters")
        rows = list(size.measure(Course.load(working_tree(root)), steps=not args.no_steps))
    return 0 if report.print_sizes(rows) else 1


def run_tag(root: Path, args: argparse.Namespace) -> int:
    """Tags come from HEAD, never from uncommitted work, so that a tag always has a commit behind it."""
    course = Course.load(commit(root, "HEAD"))
    check_syntax(course.snapshot)
    if problems := [*course.problems(), *(p for m in course.milestones for p in step_problems(course, m))]:
        raise MilestoneError("HEAD cannot be tagged:\n  " + "\n  ".join(problems))
    for tag in tag_all(root, course):
        print(f"{tag.name}  {tag.commit[:12]}  {tag.outcome}")
    if changed := uncommitted(root):
        some = f"{changed[0]} and {len(changed) - 1} more" if len(changed) > 1 else changed[0]
        print(f"note: the tags hold what HEAD holds; not in them, because uncommitted: {some}")
    print("Next: git worktree add ../m0 m0, git diff m0 m1, or git log --reverse m0..m1: its steps, one idea each")
    return 0


def run_prove(root: Path, args: argparse.Namespace) -> int:
    from milestones import report

    course = Course.load(working_tree(root))
    seed = random.randrange(1_000_000) if args.seed is None else args.seed

    if args.mutants > 0 or args.share > 1:
        drawn = f"prove --share {args.share} --mutants {args.mutants} --seed {seed}"
        print(f"one wrong or right solution in {args.share}; the same again: {drawn}")
    with report.progress() as progress:
        proofs, problems = prove.prove(
            course,
            prove.choose(course, args.exercises),
            progress,
            count=args.mutants,
            share=args.share,
            seed=seed,
            recorded=not args.record,
        )
    if args.record:
        prove.record(root, proofs)
    return 0 if report.print_proofs(proofs, problems) else 1


def run_verify(root: Path, args: argparse.Namespace) -> int:
    from milestones import report

    course = Course.load(working_tree(root))
    check_syntax(course.snapshot)
    chosen = verification.choose(course, args.milestones)
    if args.static:
        results = [verification.Result(m, note="static only") for m in chosen]
        for result in results:
            result.problems += verification.static_problems(course, result.milestone)
    else:
        seed = random.randrange(1_000_000) if args.seed is None else args.seed
        if args.share > 1:
            print(f"one tree and one step in {args.share}; the same again: verify --share {args.share} --seed {seed}")
        with report.progress() as progress, verification.forking_python() as python:
            results = verification.verify(
                root, course, chosen, run_all=args.all, with_steps=args.steps, share=args.share, seed=seed,
                green=GreenRuns(root), progress=progress, python=python,
            )  # fmt: skip
    return 0 if report.print_results([*course.problems(), *dormant.problems(course)], results) else 1
