"""`watch`: the exercise on the screen, checked again whenever a file of the package is saved; a key does the rest. It
looks at the files' times: no library needed, and it works on every file system."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from milestones.chain import Course
from milestones.labs.check import check
from milestones.labs.compare import show_compared
from milestones.labs.exercise import Exercise
from milestones.labs.lab import Lab, choose, first_open, open_lab
from milestones.labs.predict import ask
from milestones.labs.screen import show_check, show_end, show_hint
from milestones.labs.words import say
from milestones.spec import MilestoneError

HAS_KEYS = os.name == "posix"  # elsewhere there is a check after each save all the same
if HAS_KEYS:
    import termios
    import tty

OVER_THE_BAR = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
PAUSE = 0.3  # seconds between two looks


def watch(
    console: Console, course: Course, lab: Lab, exercises: list[Exercise], name: str | None, *, verbose: bool
) -> int:
    """Check now and after each save, until q or Ctrl-C, or until everything is solved. Where no key can be pressed, the
    next exercise comes as soon as one is solved."""
    has_keys = HAS_KEYS and sys.stdin.isatty()
    exercise = choose(exercises, name, lab.language) if name else first_open(lab, exercises)
    try:
        while exercise is not None:
            seen = _stamps(lab)
            with console.status(say(lab.language, "checking", name=exercise.id)):
                checked = check(lab, course, exercises, exercise)
            told = say(lab.language, "watching", time=time.strftime("%H:%M:%S"))
            if console.is_terminal:
                console.clear()
            show_check(console, lab, exercises, checked, verbose=verbose)
            is_solved = checked.grade.outcome == "solved"
            if is_solved and not has_keys:
                exercise = None if name else first_open(lab, exercises)
                continue
            key = "?"
            while key not in ("", "n", "q"):  # "": a file was saved
                if key == "h" and not is_solved:
                    show_hint(console, lab, exercise)
                    if lab.done(exercise).hints == len(exercise.pages[lab.language].hints):
                        console.print(say(lab.language, "hint_last"), style="dim")
                elif key == "c" and is_solved:
                    show_compared(console, lab, course, exercises, exercise)
                elif key == "p":
                    try:
                        ask(console, lab, exercise, None)
                    except MilestoneError as error:  # Ctrl-C or Ctrl-D in place of an answer: back to the keys
                        console.print(f"\n{error}", style="dim", markup=False)
                with _keys(has_keys):
                    _show_bar(console, lab, exercises, exercise, told, has_keys=has_keys)
                    key = _wait(lab, seen, has_keys=has_keys)
                lab = open_lab(Path(lab.repository), lab.folder)  # what `hint` or `update` wrote there meanwhile
                if has_keys:
                    console.control(OVER_THE_BAR)
                else:
                    console.print()
            if key == "q":
                return 0
            if key == "n":
                at = exercises.index(exercise) + 1
                exercise = first_open(lab, [*exercises[at:], *exercises[:at]])
        if first_open(lab, exercises) is None:
            show_end(console, lab, course)
    except KeyboardInterrupt:
        console.print()
    return 0


def _show_bar(
    console: Console, lab: Lab, exercises: list[Exercise], exercise: Exercise, told: str, *, has_keys: bool
) -> None:
    """███░░░░░ 3/8  h hint  n next  q quit  12:00:03 · save to check"""
    solved, total = sum(lab.is_solved(e) for e in exercises), len(exercises)
    line = Text.assemble(("█" * solved + "░" * (total - solved), "green"), f" {solved}/{total}  ")
    is_open = not lab.is_solved(exercise)
    asks = len(lab.done(exercise).predictions) < len(exercise.pages[lab.language].questions)
    keys = {"p": is_open and asks, "h": is_open, "c": not is_open, "n": True, "q": True} if has_keys else {}
    for key in (key for key, is_meant in keys.items() if is_meant):
        line.append(f"{key} ", style="bold cyan").append(f"{say(lab.language, f'key_{key}')}  ")
    line.append(told, style="dim").truncate(console.width - 1)  # OVER_THE_BAR takes one line away
    console.print(line, end="", soft_wrap=True)
    console.file.flush()


@contextlib.contextmanager
def _keys(has_keys: bool) -> Iterator[None]:
    """Keys come without Enter, and are not shown."""
    if not has_keys:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _wait(lab: Lab, seen: dict[str, tuple[int, int]], *, has_keys: bool) -> str:
    """The next key; "" when a file was saved."""
    while _stamps(lab) == seen:
        if not has_keys:
            time.sleep(PAUSE)
        elif select.select([sys.stdin], [], [], PAUSE)[0]:
            return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace").lower() or "q"
    return ""


def _stamps(lab: Lab) -> dict[str, tuple[int, int]]:
    """Time and size of each file of the package."""
    found = {}
    for path in (lab.folder / "folovllm").rglob("*.py"):
        try:
            stat = path.stat()
        except OSError:
            continue  # an editor replaces a file by deleting it first
        found[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return found
