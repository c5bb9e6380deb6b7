"""What the page of an exercise runs: the same judge and the same grade as `check`, without pytest and in one process.

    check({"id": "m0/02-fork", "language": "en", "text": "class Sequence: …", "seconds": 10}, say)

`text` has the exercise's functions; all else is the milestone's own code. It runs in the reader's browser, where the
archive of trees.exercises_zip() lies; the tests run it there and in CPython.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import linecache
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from milestones.labs import blank
from milestones.labs.exercise import LABS, Exercise, load_exercises
from milestones.labs.grade import of_events, stop
from milestones.labs.told import facts, marks
from milestones.labs.words import say as words
from milestones.sources import File

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # which would be taken for that of another text of the same second and length


def check(spec: dict[str, Any], say: Callable[[int], object]) -> dict[str, Any]:
    """What `check` shows of the exercise, in parts. say: is called with each test's number before it begins."""
    language = spec["language"]
    os.environ.update(LAB_TREE=str(HERE), LAB_LANGUAGE=language)
    exercise = dataclasses.replace(_exercises(spec["id"].partition("/")[0])[spec["id"]], seconds=spec["seconds"])
    own = _read(exercise.file)
    try:
        return _told(exercise, own, spec["text"], language, say)
    finally:
        (HERE / exercise.file).write_text(own, encoding="utf-8")  # other exercises stand on the milestone's own code


def _told(exercise: Exercise, own: str, written: str, language: str, say: Callable[[int], object]) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    stopped = None
    try:
        text = exercise.written_into(exercise.blanked(own), written)
    except SyntaxError as error:
        line = written.splitlines()[(error.lineno or 1) - 1 : error.lineno]
        frame = {"file": f"{exercise.name}.py", "line": error.lineno, "name": "", "code": "".join(line).strip()}
        told = {"kind": type(error).__name__, "text": error.msg, "frames": [frame]}
        events.append({"event": "failed", "test": "import", **told})
    else:
        (HERE / exercise.file).write_text(text, encoding="utf-8")
        stopped = _judge(exercise, events, say)
    grade, running = of_events(exercise, events)
    if grade.outcome == "broken":
        if stopped is None:
            grade.outcome = "solved"
        else:
            stop(grade, exercise, running, "time", "", stopped)
    rows = [] if grade.outcome == "solved" else facts(exercise, grade, language, _read)
    lacking = [] if grade.outcome != "blank" else [f for f in exercise.functions if f not in blank.functions(written)]
    if lacking:  # as a method that has lost its class
        lacks = ("", words(language, "lacks", names=", ".join(lacking)), "yellow")
        rows = [lacks if row[1] == words(language, "blank") else row for row in rows]
    printed = grade.failure.get("printed", "").strip().splitlines()[-6:]
    number = grade.invariant
    return {
        "outcome": grade.outcome,
        "marks": marks(exercise, grade),
        "invariant": number,
        "heading": f"✔ {words(language, 'solved')}" if grade.outcome == "solved" else
        number and f"✘ {words(language, 'invariant', n=number)}",
        "asked": grade.failure.get("asked", [])[-10:],
        "facts": rows,
        "mistake": grade.mistake,
        "printed": [words(language, "printed"), *printed] if printed else [],
        "figure": grade.figure,
    }  # fmt: skip


def _read(path: str) -> str:
    return (HERE / path).read_text(encoding="utf-8") if (HERE / path).is_file() else ""


@cache
def _exercises(milestone: str) -> dict[str, Exercise]:
    paths = [path for path in (HERE / LABS / milestone).rglob("*") if path.is_file()]
    snapshot = {path.relative_to(HERE).as_posix(): File(path.read_bytes()) for path in paths}
    return {exercise.id: exercise for exercise in load_exercises(snapshot, int(milestone[1:]))}


def _judge(exercise: Exercise, events: list[dict[str, Any]], say: Callable[[int], object]) -> Any:
    """Runs the tests up to the first that fails, and writes what happens as inside/lab_recorder.py does. Returns the
    frames of a test that was stopped."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("folovllm", "lab_judge", "support")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    linecache.clearcache()
    lab_judge = importlib.import_module("lab_judge")
    try:
        tests = _tests(HERE / LABS / exercise.id / "judge.py")
    except Exception as error:
        events.append({"event": "failed", "test": "import", **lab_judge.describe(error, None)})
        return None
    numbers = [test.lab_invariant for test in tests]
    events.append({"event": "collected", "tests": [test.__name__ for test in tests], "invariants": numbers})
    for at, test in enumerate(tests):
        say(at)
        name, invariant, printed = test.__name__, test.lab_invariant, io.StringIO()
        events.append({"event": "start", "test": name})
        try:
            with redirect_stdout(printed), _limit(exercise.seconds):
                test()
        except TimeLimit as error:
            return lab_judge.describe(error, None)["frames"]
        except BaseException as error:
            told = {**lab_judge.describe(error, test), "printed": printed.getvalue()[-2000:]}
            events.append({"event": "failed", "test": name, "invariant": invariant, **told})
            return None
        finally:
            events[-1:-1] = [{"event": "measured", "figure": figure} for figure in lab_judge.MEASURED]
            lab_judge.MEASURED.clear()
        events.append({"event": "passed", "test": name, "invariant": invariant})
    return None


def _tests(path: Path) -> list[Any]:
    spec = importlib.util.spec_from_file_location("judge", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [test for name, test in vars(module).items() if name.startswith("test_")]


class TimeLimit(BaseException):
    """Not an Exception, lest the learner's own `except` keep it."""


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Stops Python code that has not ended by then, at a jump or a call. A loop in C is not seen: the page waits for
    some seconds more, and ends the worker."""
    watch, end = vars(sys).get("monitoring"), time.monotonic() + seconds
    if watch is None:  # CPython before 3.12
        yield
        return

    def look(*_: object) -> None:
        if time.monotonic() > end:
            watch.set_events(watch.DEBUGGER_ID, 0)
            raise TimeLimit

    watch.use_tool_id(watch.DEBUGGER_ID, "exercise")
    for event in (watch.events.JUMP, watch.events.PY_START):
        watch.register_callback(watch.DEBUGGER_ID, event, look)
    watch.set_events(watch.DEBUGGER_ID, watch.events.JUMP | watch.events.PY_START)
    try:
        yield
    finally:
        watch.free_tool_id(watch.DEBUGGER_ID)
