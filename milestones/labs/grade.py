"""Grades one exercise: runs its judge in a process of its own, over a given tree, and tells what came of it.

scratch/judge.py, support.py     pristine, from this repository     PYTHONPATH  scratch
scratch/lab_judge.py, lab_recorder.py, …                                        scratch/pristine (tests/)
LAB_TREE = the learner's folder  the only place that `folovllm` is taken from, in worker processes too
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from milestones.labs import blank
from milestones.labs.answers import answer_of
from milestones.labs.exercise import Exercise
from milestones.labs.inside.lab_values import shown_lines
from milestones.labs.words import say
from milestones.sources import Snapshot
from milestones.trees import write_tree

INSIDE = Path(__file__).with_name("inside")
Outcome = Literal["solved", "blank", "needs", "wrong", "error", "time", "crash", "broken"]
# Beyond what the judge itself allows one test: importing torch on a busy machine.
GRACE = 600
WAIT = 6  # as in inside/lab_recorder.py: a test that waits may take so many times its seconds
# Exit codes of a judge that was stopped: by us, by its timer of CPU seconds, and by that as a shell says it.
STOPPED = {124} | ({-signal.SIGPROF, 128 + signal.SIGPROF} if hasattr(signal, "SIGPROF") else set())


@dataclass
class Grade:
    """What grading found. `failure` is what inside/lab_judge.py says of the first test that failed."""

    outcome: Outcome
    passed: list[int] = field(default_factory=list)  # invariants, one entry a test
    judged: list[int] = field(default_factory=list)  # invariants of all tests, in order
    tests: list[str] = field(default_factory=list)
    failed_test: str = ""
    failure: dict[str, Any] = field(default_factory=dict)
    figure: float | None = None  # of an open task: what was measured last
    problem: str = ""  # for "broken": what keeps this from being a grade at all; for "needs": the other exercise
    seconds: float = 0.0

    @property
    def invariant(self) -> int | None:
        return self.failure.get("invariant")

    @property
    def mistake(self) -> str | None:
        """The mistake whose answer came, if one is known."""
        return self.failure.get("mistake")

    @property
    def was_printing(self) -> bool:
        """Whether the learner's code was in a print() when it was stopped."""
        return any("print(" in frame.get("code", "") for frame in self.failure.get("frames", [])[-1:])


def grade(
    exercise: Exercise,
    folder: Path,
    tree: Snapshot,
    python: str = sys.executable,
    language: str = "en",
    patience: int = 1,
) -> Grade:
    """Judge the `folovllm` in `folder` with a process of `python`; `tree` is the milestone as this repository has it,
    for pristine helpers. language: of what is expected and got. patience: how many times the exercise's seconds a test
    may take."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="folovllm-judge-", ignore_cleanup_errors=True) as name:
        scratch = Path(name).resolve()
        judge = exercise.files["judge.py"].data
        (scratch / "judge.py").write_bytes(judge)
        (scratch / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        for support, file in exercise.support.items():
            (scratch / support).write_bytes(file.data)
        for inside in ("lab_judge.py", "lab_recorder.py", "lab_values.py", "sitecustomize.py"):
            shutil.copy(INSIDE / inside, scratch / inside)
        sources = [judge, *(file.data for file in exercise.support.values())]
        if any(re.search(rb"^\s*(from|import) tests\b", source, re.MULTILINE) for source in sources):
            helpers = {path: file for path, file in tree.items() if path.startswith("tests/") and path.endswith(".py")}
            write_tree(helpers, scratch / "pristine")
        code, output = _run(python, scratch, folder, patience * exercise.seconds, language)
        result = _read(exercise, scratch, folder, code, output, language)
    result.seconds = time.monotonic() - start
    return result


def _run(python: str, scratch: Path, folder: Path, seconds: int, language: str) -> tuple[int, str]:
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHON"))},
        "PYTHONPATH": os.pathsep.join([str(scratch), str(scratch / "pristine")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HF_HUB_OFFLINE": "1",
        "LAB_TREE": str(folder.resolve()),
        "LAB_REPORT": str(scratch / "report.jsonl"),
        "LAB_CRASH": str(scratch / "crash.txt"),
        "LAB_SECONDS": str(seconds),
        "LAB_LANGUAGE": language,
    }
    options = ["-x", "-q", "--assert=plain", "--import-mode=importlib", "-p", "no:cacheprovider"]
    options += ["-p", "no:faulthandler", "-p", "lab_recorder"]  # it has a fault handler of its own
    command = [python, "-m", "pytest", *options, "-c", "pytest.ini", "--rootdir", ".", "judge.py"]
    output = scratch / "output.txt"
    with output.open("wb") as sink:  # a file: a process that a test left behind cannot keep us waiting on a pipe
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=os.name == "posix",
        )
        try:
            code = process.wait(timeout=GRACE + WAIT * seconds)
        except subprocess.TimeoutExpired:
            code = 124
            if os.name == "posix":  # its fault handler then writes where it was
                process.send_signal(signal.SIGABRT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
        finally:
            _stop(process)
    return code, output.read_text(encoding="utf-8", errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()


def _read(exercise: Exercise, scratch: Path, folder: Path, code: int, output: str, language: str) -> Grade:
    report, events = scratch / "report.jsonl", []
    if report.is_file():
        for line in report.read_text(encoding="utf-8").splitlines():
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                break  # cut by a crash
    result, running = of_events(exercise, events)
    if result.outcome != "broken":
        return result
    if result.problem:
        if result.problem.endswith(" was skipped"):
            result.problem += f": {output.strip()[-300:]}"
        return result
    if events and code == 0 and result.tests and len(result.passed) == len(result.tests):
        result.outcome = "solved"
        return result
    crash = scratch / "crash.txt"
    stack = crash.read_text(encoding="utf-8", errors="replace") if crash.is_file() else ""
    frames = _stack_frames(stack, exercise.file, folder)
    if stack.startswith("Timeout") or code in STOPPED:
        outcome: Outcome = "time"
    elif running or stack:
        outcome = "crash"
    else:
        result.problem = f"no test ran (exit code {code}): {output.strip()[-600:]}"
        return result
    text = stack.partition("\n")[0] if stack else say(language, "exit_code", code=code)
    stop(result, exercise, running, outcome, text, frames)
    return result


def of_events(exercise: Exercise, events: list[dict[str, Any]]) -> tuple[Grade, str]:
    """The grade as far as the judge's events decide it, and the test that was running last. An outcome "broken" without
    a problem: they do not."""
    result, running = Grade("broken"), ""
    for event in events:
        kind = event.pop("event")
        if kind == "collected":
            result.tests, result.judged = event["tests"], event["invariants"]
            pairs = zip(result.tests, event["invariants"], strict=True)
            if unmarked := [test for test, number in pairs if number is None]:
                result.problem = f"{unmarked[0]} has no @invariant(number)"
                break
        elif kind == "start":
            running = event["test"]
        elif kind == "measured":
            result.figure = event["figure"]
        elif kind == "passed":
            result.passed.append(event["invariant"])
        elif kind == "failed":
            result.failed_test, result.failure = event["test"], event
            result.outcome, result.problem = _kind(exercise, event)
            event["mistake"] = exercise.mistake_of(answer_of(event["test"], event))
            break
        elif kind == "skipped":
            result.problem = f"{event['test']} was skipped"
            break
        elif kind == "end" and event["foreign"]:
            result.problem = f"loaded from outside of the folder: {event['foreign'][0]}"
            break
    return result, running


def stop(
    result: Grade, exercise: Exercise, running: str, outcome: Outcome, text: str, frames: list[dict[str, Any]]
) -> None:
    """Write into the grade that the running test did not end by itself."""
    test = running.partition("[")[0]
    number = dict(zip(result.tests, result.judged, strict=True)).get(test)
    result.outcome, result.failed_test = outcome, running
    result.failure = {"invariant": number, "kind": outcome, "text": text, "frames": frames}
    result.failure["asked"] = _body(exercise.files["judge.py"].data.decode("utf-8"), test)


def _kind(exercise: Exercise, event: dict[str, Any]) -> tuple[Outcome, str]:
    if event["kind"] == "NotImplementedError":
        if event["text"] in map(exercise.message, exercise.functions):
            return "blank", ""
        if other := re.match(r"exercise (m\d+/[\w-]+):", event["text"]):
            return "needs", other[1]
    return ("wrong" if event["kind"] == "mismatch" else "error"), ""


def _body(judge: str, test: str) -> list[str]:
    """The lines of a test."""
    node = blank.functions(judge).get(test, [None])[0]
    if node is None:
        return []
    return shown_lines(judge.splitlines(), node, node.end_lineno or node.lineno)


def _stack_frames(stack: str, file: str, folder: Path) -> list[dict[str, Any]]:
    """Lines of the learner's file in a stack that faulthandler wrote, the innermost last."""
    lines = (folder / file).read_text(encoding="utf-8").splitlines() if (folder / file).is_file() else []
    found = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', stack)
    mine = [(path, line, name) for path, line, name in found if Path(path).as_posix().endswith(file)]
    return [
        {"file": file, "line": int(line), "name": name, "code": "".join(lines[int(line) - 1 : int(line)]).strip()}
        for _, line, name in reversed(mine)
    ]
