"""From one milestone to the next with the same engine: what was solved is carried on, and the end of a milestone shows
what the learner's own engine can do.

    start m2 ../m2-lab --from ../m1-lab     the functions that were written there, with what M2 has changed in them
    finish                                  a generation by the folder's own code, beside the milestone before it
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from milestones.chain import Course
from milestones.labs import blank
from milestones.labs.exercise import OWN, Exercise, load_exercises
from milestones.labs.grade import grade
from milestones.labs.lab import Lab
from milestones.sources import File, Snapshot, merge
from milestones.spec import MilestoneError
from milestones.trees import write_tree

GENERATES = "folovllm/entrypoints/llm.py"  # a milestone without it generates nothing
SECONDS = 300
PROMPT, NUM_TOKENS, PROMPTS = "Once upon a time", 48, 4
SAYS = "@@"  # before what the script says, since the engine may print too
SCRIPT = f"""\
import json, time
from folovllm import LLM, SamplingParams
llm = LLM(dtype="float32", device="cpu")
params = SamplingParams(temperature=0, max_tokens={NUM_TOKENS}, ignore_eos=True)
for output in llm.engine.generate_stream({PROMPT!r}, params):
    print({SAYS!r} + json.dumps(output.outputs[0].text), flush=True)
began = time.perf_counter()
llm.generate([{PROMPT!r}] * {PROMPTS}, params, use_tqdm=False)
print({SAYS!r} + json.dumps({PROMPTS} * {NUM_TOKENS} / (time.perf_counter() - began)))
"""


def carry_on(lab: Lab, before: Lab, course: Course) -> Iterator[tuple[str, Exercise]]:
    """Put the functions that were written in `before`, graded or not, into `lab`, and commit them. Gives what became of
    each exercise, as soon as that is known: "carried"; "merged_on", with the changes of the milestones between;
    "left_blank", as there is nothing; "left_open", an open task; "left_changed", as these changes are in the same
    lines, or in what its judge calls, and the newer function is left as it is; "left_refused", as its judge refuses it
    here; "left_beside", as it is refused without what was written beside it, such as a helper, for which this milestone
    leaves no room."""
    carried: list[Exercise] = []
    with_helpers: set[str] = set()  # files that have what was written beside the exercises
    handed_out = before.base()
    there, here = course.tree(before.number), course.tree(lab.number)
    asked = {(e.file, function) for e in load_exercises(course.snapshot, lab.number) for function in e.functions}
    for exercise in [*carried_exercises(before, course), *load_exercises(course.snapshot, before.number)]:
        if exercise.id not in before.carried and not before.is_written(exercise, handed_out):
            yield "left_blank", exercise
            continue
        if OWN in exercise.files:
            yield "left_open", exercise
            continue
        file = exercise.file
        again = any((file, function) in asked for function in exercise.functions)
        path, old = lab.folder / file, lab.read(file)
        new = None if again or file not in here else _merged(exercise, old, before.read(file), there[file], here[file])
        if new is None:
            yield "left_changed", exercise
            continue
        is_alone = False
        if file not in with_helpers and (helpers := _beside(before, course, handed_out, file, new)):
            joined = merge(new.encode(), *helpers)
            new, is_alone = (new, True) if joined is None else (joined.decode("utf-8"), False)
        path.write_bytes(new.encode("utf-8"))
        if grade(exercise, lab.folder, here, language=lab.language).outcome == "solved":
            carried.append(exercise)
            with_helpers |= set() if is_alone else {file}
            yield ("carried" if is_same(exercise, there[file], here[file]) else "merged_on"), exercise
            continue
        path.write_bytes(old.encode("utf-8"))
        # A judge that refuses the course's own code knows too little of what the milestones between have changed.
        is_judged = grade(exercise, lab.folder, here, language=lab.language).outcome == "solved"
        yield ("left_beside" if is_alone and is_judged else "left_refused" if is_judged else "left_changed"), exercise
    if carried:
        lab.carried = [exercise.id for exercise in carried]
        lab.save()
        lab.commit(f"What was solved in {before.milestone}")


def _merged(exercise: Exercise, text: str, mine: str, there: File, here: File) -> str | None:
    """`text` with the functions of `mine`, and in them what the course has changed from `there` to `here`; None where
    that is in the lines that the learner wrote otherwise, or a function is gone."""
    for function in exercise.functions:
        try:
            own = blank.source_of(mine, function)
            old, new = (blank.source_of(file.data.decode("utf-8"), function) for file in (there, here))
        except MilestoneError:
            return None
        source = own.encode() if old == new else merge(own.encode(), old.encode(), new.encode())
        if source is None:
            return None
        text = blank.replace(text, function, source.decode("utf-8"), exercise.file)
    return text


def _beside(lab: Lab, course: Course, handed_out: Snapshot, file: str, new: str) -> tuple[bytes, bytes] | None:
    """The file as handed out and as it is in the folder, the exercises' functions in both as `new` has them: what
    is left between the two is what the learner wrote beside. None where that is nothing."""
    exercises = [*carried_exercises(lab, course), *load_exercises(course.snapshot, lab.number)]
    texts = [handed_out[file].data.decode("utf-8"), lab.read(file)]
    try:
        for exercise in (each for each in exercises if each.file == file):
            texts = [exercise.with_functions_of(exercise.blanked(text), new) for text in texts]
    except MilestoneError:  # a function is gone
        return None
    return None if texts[0] == texts[1] else (texts[0].encode(), texts[1].encode())


def carried_exercises(lab: Lab, course: Course) -> list[Exercise]:
    """Those of earlier milestones whose solutions in this folder are the learner's own."""
    numbers = sorted({int(name[1 : name.index("/")]) for name in lab.carried})
    return [e for number in numbers for e in load_exercises(course.snapshot, number) if e.id in lab.carried]


def is_same(exercise: Exercise, there: File, here: File) -> bool:
    """Whether the exercise's functions are in both, and are the same."""
    texts = [file.data.decode("utf-8") for file in (there, here)]
    try:
        sources = [[blank.source_of(text, function) for function in exercise.functions] for text in texts]
    except MilestoneError:
        return False
    return sources[0] == sources[1]


@dataclass
class Shown:
    """What an engine did: the likeliest continuation of PROMPT, and tokens/s of PROMPTS of them at once."""

    text: str
    tokens_per_s: float


def generate(folder: Path, show: Callable[[str], object] = str) -> Shown:
    """A generation by the `folovllm` in `folder`, in a process of its own. show: is given the text piece by piece.

    Raises:
        MilestoneError: it failed; the text has its last lines.
    """
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    shown = Shown("", 0.0)
    command = [sys.executable, "-X", "utf8", "-P", "-c", SCRIPT]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8", errors="replace"
        ) as process,
    ):
        guard = threading.Timer(SECONDS, process.kill)
        guard.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(SAYS):
                said = json.loads(line.removeprefix(SAYS))
                if isinstance(said, str):
                    shown.text += said
                    show(said)
                else:
                    shown.tokens_per_s = said
        process.wait()
        if not guard.is_alive():
            raise MilestoneError(f"the engine in {folder} did not finish within {SECONDS} s")
        guard.cancel()
        if process.returncode:
            errors.seek(0)
            last = "\n".join(errors.read().strip().splitlines()[-5:])
            raise MilestoneError(f"the engine in {folder} failed:\n{last}")
    return shown


def generate_of(course: Course, number: int) -> Shown:
    """The same by a milestone's own code."""
    tree = course.tree(number)
    with tempfile.TemporaryDirectory(prefix=f"folovllm-m{number}-") as name:
        folder = Path(name).resolve()
        write_tree({path: file for path, file in tree.items() if path.startswith("folovllm/")}, folder)
        return generate(folder)
