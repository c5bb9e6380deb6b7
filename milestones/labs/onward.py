"""From one milestone to the next with the same engine: what was solved is carried on, and the end of a milestone shows
what the learner's own engine can do.

    start m2 ../m2-lab --from ../m1-lab     the functions that were solved there, with what M2 has changed in them
    finish                                  a generation by the folder's own code, beside the milestone before it
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from milestones.chain import Course
from milestones.labs import blank
from milestones.labs.exercise import OWN, Exercise, load_exercises
from milestones.labs.grade import grade
from milestones.labs.lab import Lab
from milestones.sources import IDENTITY, File, git, merge
from milestones.spec import MilestoneError
from milestones.trees import write_tree

GENERATES = "folovllm/entrypoints/llm.py"  # a milestone without it generates nothing
SECONDS = 300
PROMPT, NUM_TOKENS, PROMPTS = "Once upon a time", 48, 4
SCRIPT = f"""\
import json, time
from folovllm import LLM, SamplingParams
llm = LLM(dtype="float32", device="cpu")
params = SamplingParams(temperature=0, max_tokens={NUM_TOKENS}, ignore_eos=True)
text = llm.generate([{PROMPT!r}], params, use_tqdm=False)[0].outputs[0].text
began = time.perf_counter()
llm.generate([{PROMPT!r}] * {PROMPTS}, params, use_tqdm=False)
print(json.dumps([text, {PROMPTS} * {NUM_TOKENS} / (time.perf_counter() - began)]))
"""


def carry_on(lab: Lab, before: Lab, course: Course) -> Iterator[tuple[str, Exercise]]:
    """Put the functions that were solved in `before` into `lab`, and commit them. Gives what became of each exercise,
    as soon as that is known: "carried"; "merged_on", with the changes of the milestones between; "left_changed", as
    these are in the same lines, or in what its judge calls, and the newer function is left as it is; "left_refused", as
    its judge refuses it here."""
    if before.number >= lab.number:
        raise MilestoneError(f"--from must be of a milestone before {lab.milestone}, got {before.milestone}")
    carried: list[Exercise] = []
    there, here = course.tree(before.number), course.tree(lab.number)
    asked = {(e.file, function) for e in load_exercises(course.snapshot, lab.number) for function in e.functions}
    for exercise in _solved(before, course):
        if OWN in exercise.files:
            continue  # an open task is no part of the engine
        file = exercise.file
        again = any((file, function) in asked for function in exercise.functions)
        path, old = lab.folder / file, lab.read(file)
        new = None if again or file not in here else _merged(exercise, old, before.read(file), there[file], here[file])
        if new is None:
            yield "left_changed", exercise
            continue
        path.write_bytes(new.encode("utf-8"))
        if grade(exercise, lab.folder, here, language=lab.language).outcome == "solved":
            carried.append(exercise)
            yield ("carried" if is_same(exercise, there[file], here[file]) else "merged_on"), exercise
            continue
        path.write_bytes(old.encode("utf-8"))
        # A judge that refuses the course's own code knows too little of what the milestones between have changed.
        is_judged = grade(exercise, lab.folder, here, language=lab.language).outcome == "solved"
        yield ("left_refused" if is_judged else "left_changed"), exercise
    if carried:
        lab.carried = [exercise.id for exercise in carried]
        lab.save()
        git(lab.folder, "add", "--all")
        title = f"What was solved in {before.milestone}"
        git(lab.folder, "commit", "--quiet", "--no-gpg-sign", "--allow-empty", "--message", title, env=IDENTITY)


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


def carried_exercises(lab: Lab, course: Course) -> list[Exercise]:
    """Those of earlier milestones whose solutions in this folder are the learner's own."""
    numbers = sorted({int(name[1 : name.index("/")]) for name in lab.carried})
    return [e for number in numbers for e in load_exercises(course.snapshot, number) if e.id in lab.carried]


def _solved(lab: Lab, course: Course) -> list[Exercise]:
    own = [e for e in load_exercises(course.snapshot, lab.number) if lab.is_solved(e)]
    return [*carried_exercises(lab, course), *own]


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


def generate(folder: Path) -> Shown:
    """A generation by the `folovllm` in `folder`, in a process of its own.

    Raises:
        MilestoneError: it failed; the text has its last lines.
    """
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT],
            cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise MilestoneError(f"the engine in {folder} did not finish within {SECONDS} s") from error
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise MilestoneError(f"the engine in {folder} failed:\n{last}")
    return Shown(*json.loads(done.stdout.splitlines()[-1]))


def generate_of(course: Course, number: int) -> Shown | None:
    """The same by a milestone's own code; None where it has no engine."""
    tree = course.tree(number)
    if GENERATES not in tree:
        return None
    with tempfile.TemporaryDirectory(prefix=f"folovllm-m{number}-") as name:
        folder = Path(name).resolve()
        write_tree({path: file for path, file in tree.items() if path.startswith("folovllm/")}, folder)
        return generate(folder)
