"""The learner's commands: start, check, hint, solution, reset, restore, predict, finish, progress, update."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from milestones.chain import Course
from milestones.labs.check import outside
from milestones.labs.exercise import Exercise, load_exercises, solved_tree
from milestones.labs.kept import apply_solution, copies, lines_of, reset, restore
from milestones.labs.lab import Lab, choose, exercises_of, find_lab, first_open, known_labs, open_lab
from milestones.labs.onward import GENERATES, PROMPT, carry_on, generate, generate_of
from milestones.labs.pages import bring, read_saved
from milestones.labs.start import default_language, install_command, solve, start, update
from milestones.labs.words import say
from milestones.sources import working_tree
from milestones.spec import LANGUAGES, MilestoneError

if TYPE_CHECKING:  # rich is imported where it is needed: `start` does without
    from rich.console import Console


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("start", help="write a milestone with its exercises emptied, to be filled in")
    command.add_argument("milestone", metavar="mK")
    command.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder")
    there = "carry on what you solved there; a file: in the pages of the site"
    command.add_argument("--from", dest="before", metavar="DIR", type=Path, help=there)
    command.add_argument("--at", metavar="NAME", help="begin at this exercise, with those before it solved")
    command.add_argument("--lang", choices=LANGUAGES, help="what you are told things in (default: your environment's)")
    command.set_defaults(run=run_start)

    command = _in_lab(commands, run_check, "grade the first exercise that is not solved, or the one named")
    command.add_argument("-v", "--verbose", action="store_true", help="the whole test, all lines on the way")
    command.add_argument("--all", action="store_true", help="grade every exercise, and count")
    command = _in_lab(commands, run_watch, "the next exercise, checked whenever you save; keys do the rest")
    command.add_argument("-v", "--verbose", action="store_true", help="the whole test, all lines on the way")
    command = _in_lab(commands, run_solution, "the milestone's own code")
    command.add_argument("--apply", action="store_true", help="write it into your folder; said in your progress")
    command = _in_lab(commands, run_restore, "what you wrote before a reset or a solution: lists it, gets it back")
    command.add_argument("number", metavar="NUMBER", nargs="?", type=int, help="of the copy to bring back")
    command = _in_lab(commands, run_predict, "a question to answer before you code")
    command.add_argument("answer", metavar="LETTER", nargs="?", help="your answer (default: you are asked)")
    _in_lab(commands, run_hint, "one hint more; there are three")
    _in_lab(commands, run_compare, "the course's and other right solutions beside yours, once solved")
    _in_lab(commands, run_reset, "an exercise's functions as handed out; what you wrote is kept")
    _in_lab(commands, run_finish, "what your own engine can do now, beside the milestone before", name=False)
    _in_lab(commands, run_progress, "where you are on the whole way, and what is next", name=False)
    _in_lab(commands, run_update, "bring later fixes of the course into your folder", name=False)


def _in_lab(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], run: Callable[[Path, argparse.Namespace], int],
    help: str, *, name: bool = True,
) -> argparse.ArgumentParser:  # fmt: skip
    command = commands.add_parser(run.__name__.removeprefix("run_"), help=help)
    command.set_defaults(run=run)
    if name:
        command.add_argument("name", metavar="NAME", nargs="?", help="an exercise: 3, block-pool, m3/03 …")
    command.add_argument("--dir", type=Path, help="your folder (default: where you stand, or the one used last)")
    command.add_argument("--lang", choices=LANGUAGES, help="from here on")
    return command


def run_start(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    milestone = course.get(args.milestone)
    saved = read_saved(args.before) if args.before is not None and args.before.is_file() else None
    before = None if args.before is None or saved is not None else open_lab(root, args.before.resolve())
    language = args.lang or (before.language if before is not None else default_language())
    if before is not None and before.number >= milestone.number:
        raise MilestoneError(f"--from must be of a milestone before {milestone.id}, got {before.milestone}")
    exercises = load_exercises(course.snapshot, milestone.number)
    solved = [] if args.at is None else exercises[: exercises.index(choose(exercises, args.at, language))]
    lab = start(root, course, milestone, args.folder, language)
    label = f"M{milestone.number}: {milestone.title[language]}"
    print(say(language, "started", label=label, n=len(exercises), folder=args.folder))
    solve(lab, course, solved)
    for exercise in solved:
        print(say(language, "handed_solved", name=exercise.id, title=exercise.pages[language].title))
    if before is not None:
        print(say(language, "carrying", folder=args.before), flush=True)
        for key, exercise in carry_on(lab, before, course):
            print(say(language, key, name=exercise.id, title=exercise.pages[language].title), flush=True)
        for path in outside(before, course, load_exercises(course.snapshot, before.number)):
            print(say(language, "left_file", name=path))
    if saved is not None:
        for key, exercise in bring(root, course, lab, saved):
            print(say(language, key, name=exercise.id, title=exercise.pages[language].title), flush=True)
    print(say(language, "started_next", folder=shlex.quote(str(args.folder))))
    if find_spec("pytest") is None:
        print(say(language, "needs_pytest", command=install_command(root)))
    return 0


def run_check(root: Path, args: argparse.Namespace) -> int:
    import pytest  # noqa: F401  (the judge needs it in a process of its own, where its lack would look like a fault)

    from milestones.labs.check import check
    from milestones.labs.screen import LabConsole, show_check, show_end, show_line, show_next

    course, lab, exercises = _open(root, args)
    console = LabConsole()
    exercise = choose(exercises, args.name, lab.language) if args.name else first_open(lab, exercises)
    row = exercises if exercise is None or args.all else [exercise]
    for one in row:
        with console.status(say(lab.language, "checking", name=one.id)):
            checked = check(lab, course, exercises, one)
        if row is not exercises:
            show_check(console, lab, exercises, checked, verbose=args.verbose)
            show_next(console, lab, exercises, checked)
        else:
            show_line(console, lab, checked)
    if row is exercises:
        solved = sum(lab.is_solved(exercise) for exercise in exercises)
        console.print("\n" + say(lab.language, "sum", solved=solved, total=len(exercises)))
    if first_open(lab, exercises) is None:
        show_end(console, lab, course)
        return 0
    return int(row is exercises or checked.grade.outcome != "solved")


def run_watch(root: Path, args: argparse.Namespace) -> int:
    import pytest  # noqa: F401

    from milestones.labs.screen import LabConsole
    from milestones.labs.watch import watch

    course, lab, exercises = _open(root, args)
    return watch(LabConsole(), course, lab, exercises, args.name, verbose=args.verbose)


def run_hint(root: Path, args: argparse.Namespace) -> int:
    from milestones.labs.screen import LabConsole, show_hint

    _, lab, exercises = _open(root, args)
    exercise = _one(lab, exercises, args.name)
    console = LabConsole()
    _heading(console, lab, exercise)
    show_hint(console, lab, exercise)
    more = "hint_more" if lab.done(exercise).hints < len(exercise.pages[lab.language].hints) else "hint_last"
    console.print(" ".join(filter(None, [say(lab.language, more), args.name])), style="dim")
    return 0


def run_solution(root: Path, args: argparse.Namespace) -> int:
    from milestones.labs.compare import sources
    from milestones.labs.prose import python
    from milestones.labs.screen import LabConsole

    course, lab, exercises = _open(root, args)
    exercise = _one(lab, exercises, args.name)
    console, done = LabConsole(), lab.done(exercise)
    text = solved_tree(course, lab.number, exercises)[exercise.file].data.decode("utf-8")
    if args.apply:
        kept = apply_solution(lab, course, exercise)
        done.solution = "applied"
        lab.save()
        console.print(say(lab.language, "applied", file=exercise.file), soft_wrap=True)
        console.print(_place(lab, kept), soft_wrap=True)
        console.print(f"{say(lab.language, 'next')}  python -m milestones check {exercise.name}", style="dim")
        return 0
    done.solution = done.solution or "shown"
    lab.save()
    _heading(console, lab, exercise)
    console.print(say(lab.language, "solution_of", file=exercise.file), style="dim", markup=False)
    console.print(python("\n" + sources(exercise, text), wrap=False), soft_wrap=True)  # a broken line cannot be copied
    console.print("\n" + say(lab.language, "solution_apply"), style="dim")
    return 0


def run_compare(root: Path, args: argparse.Namespace) -> int:
    from milestones.labs.compare import show_compared
    from milestones.labs.screen import LabConsole

    course, lab, exercises = _open(root, args)
    solved = [exercise for exercise in exercises if lab.is_solved(exercise)]
    exercise = choose(exercises, args.name, lab.language) if args.name else [exercises[0], *solved][-1]
    if exercise not in solved:
        raise MilestoneError(say(lab.language, "compare_first", name=exercise.name))
    show_compared(LabConsole(), lab, course, exercises, exercise)
    return 0


def run_reset(root: Path, args: argparse.Namespace) -> int:
    _, lab, exercises = _open(root, args)
    if args.name is None:
        raise MilestoneError(say(lab.language, "reset_name"))
    exercise = choose(exercises, args.name, lab.language)
    kept = reset(lab, exercise)
    print(say(lab.language, "reset", file=exercise.file))
    print(_place(lab, kept))
    return 0


def run_restore(root: Path, args: argparse.Namespace) -> int:
    _, lab, exercises = _open(root, args)
    if args.name is not None and args.number is not None:
        exercise = choose(exercises, args.name, lab.language)
        kept = restore(lab, exercise, args.number)
        print(say(lab.language, "restored", file=exercise.file, number=args.number))
        print(_place(lab, kept))
        return 0
    chosen = [choose(exercises, args.name, lab.language)] if args.name else exercises
    found = [(exercise, copy) for exercise in chosen for copy in copies(lab, exercise)]
    for exercise, copy in found:
        values = {"lines": lines_of(copy, exercise), "command": copy.before}
        print(f"{exercise.folder}  {copy.number}  {say(lab.language, 'copy', **values)}")
    print(say(lab.language, "restore_how" if found else "no_copies"))
    return 0


def run_predict(root: Path, args: argparse.Namespace) -> int:
    from milestones.labs.predict import ask
    from milestones.labs.screen import LabConsole

    _, lab, exercises = _open(root, args)
    name, answer = args.name, args.answer
    if name and answer is None and len(name) == 1 and name in "abcde":
        name, answer = None, name  # `predict b`: of the exercise that is open
    exercise = _one(lab, exercises, name)
    return ask(LabConsole(), lab, exercise, answer)


def run_finish(root: Path, args: argparse.Namespace) -> int:
    from milestones.labs.screen import LabConsole, show_end

    course, lab, exercises = _open(root, args)
    if (todo := first_open(lab, exercises)) is not None:
        raise MilestoneError(say(lab.language, "finish_first", name=todo.id))
    console = LabConsole()
    if GENERATES in course.tree(lab.number):
        console.print(say(lab.language, "finishing"), style="dim")
        print(f"{say(lab.language, 'yours')}  {PROMPT}", end="", flush=True)
        mine = generate(lab.folder, lambda piece: print(piece, end="", flush=True))
        print()
        console.print(say(lab.language, "tokens_per_s", name=lab.milestone, speed=f"{mine.tokens_per_s:,.0f}"))
        if GENERATES in course.tree(lab.number - 1):
            name = f"m{lab.number - 1}"
            with console.status(say(lab.language, "finishing_before", name=name)):
                earlier = generate_of(course, lab.number - 1)
            console.print(say(lab.language, "tokens_per_s", name=name, speed=f"{earlier.tokens_per_s:,.0f}"))
            if earlier.text != mine.text:
                raise MilestoneError(say(lab.language, "other_text", name=name, text=repr(earlier.text)))
    show_end(console, lab, course, is_shown=True)
    return 0


def run_progress(root: Path, args: argparse.Namespace) -> int:
    from milestones.labs.progress import show_progress
    from milestones.labs.screen import LabConsole

    course = Course.load(working_tree(root))
    here = find_lab(root, args.dir, args.lang) if args.dir or known_labs(root) else None
    labs = [open_lab(root, folder) for folder in known_labs(root)]
    language = args.lang or (here.language if here else default_language())
    show_progress(LabConsole(), course, labs, here, language)
    return 0


def run_update(root: Path, args: argparse.Namespace) -> int:
    course = Course.load(working_tree(root))
    lab = find_lab(root, args.dir, args.lang)
    result = update(lab, course)
    rows = {"written": result.written, "merged": result.merged, "deleted": result.deleted, "kept": result.kept}
    for key, paths in rows.items():
        if paths:
            print(f"{say(lab.language, key)}:")
            print("\n".join(f"  {path}" for path in paths))
    if not any(rows.values()):
        print(say(lab.language, "up_to_date"))
    return 1 if result.kept else 0


def _open(root: Path, args: argparse.Namespace) -> tuple[Course, Lab, list[Exercise]]:
    course = Course.load(working_tree(root))
    lab = find_lab(root, args.dir, args.lang)
    return course, lab, exercises_of(course, lab)


def _one(lab: Lab, exercises: list[Exercise], name: str | None) -> Exercise:
    """The exercise named, else the first that is open, else the last."""
    return choose(exercises, name, lab.language) if name else first_open(lab, exercises) or exercises[-1]


def _place(lab: Lab, kept: Path | None) -> str:
    """Where the copy of what was there is."""
    place = "" if kept is None else kept.relative_to(lab.folder).as_posix()
    return say(lab.language, "kept_in" if place else "kept_nothing", place=place)


def _heading(console: Console, lab: Lab, exercise: Exercise) -> None:
    title = exercise.pages[lab.language].title
    console.print(f"M{exercise.milestone} · {exercise.folder[:2]} {title}", style="bold", markup=False)
