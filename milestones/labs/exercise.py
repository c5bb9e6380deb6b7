"""What an exercise says, as dataclasses, and the reader that refuses a misspelt one.

    milestones/labs/m3/01-block-pool/
        exercise.toml     the file and the functions that are blanked, the note to read before
        en.md, zh.md      task, hints, questions, messages (page.py)
        judge.py          the tests that judge it (inside/lab_judge.py)
        wrong/NAME.py     solutions that learners write and that must be refused, with the message called NAME
        mistakes.json     what each of them answers (answers.py)
        right/NAME.py     unusual solutions that must be accepted, if there are any
        equivalent.toml   mutants of the solution that compute the same (mutants.py), each with the reason
        own.py            of an open task: the file that it brings, with our solution
    milestones/labs/m3/support.py       what several judges share, if anything

The solution is the milestone's own code and is stored nowhere else. An open task is judged by a figure that any code
may reach: it brings a file of its own, and `figure` says what ours and the best known solution reach.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from milestones.chain import Course
from milestones.labs import blank
from milestones.labs.answers import FILE, Answer, read_answers
from milestones.labs.page import Page, parse_page
from milestones.sources import File, Snapshot
from milestones.spec import LANGUAGES, MilestoneError

LABS = "milestones/labs"
MAX_SECONDS = 60
MAX_MINUTES = 120
_FOLDER = re.compile(r"(\d\d)-([a-z0-9]+(?:-[a-z0-9]+)*)")
_FILES = re.compile(
    r"(exercise|equivalent)\.toml|mistakes\.json|(en|zh)\.md|(judge|own)\.py|(wrong|right)/[a-z0-9-]+\.py"
)
OWN, BEST = "own.py", "best"


@dataclass(frozen=True)
class Exercise:
    """One exercise of milestone `milestone`."""

    milestone: int
    folder: str  # "01-block-pool"
    file: str  # of the tree: where the functions are
    functions: list[str]  # qualified names, blanked together
    note: str  # the page that comes before it, and has its box: "m3/block-tables.md"
    minutes: int  # that it takes, about
    seconds: int  # that one of its tests may take
    figure: dict[str, float]  # of an open task: what "ours" reaches, and the "best" known; else empty
    pages: dict[str, Page]
    files: dict[str, File]  # of its folder, by the path in it
    support: dict[str, File]  # that the milestone's judges share, by name

    @property
    def id(self) -> str:
        """What messages call it: "m3/01-block-pool"."""
        return f"m{self.milestone}/{self.folder}"

    @property
    def name(self) -> str:
        return self.folder[3:]

    @property
    def is_lower_better(self) -> bool:
        """Of an open task's figure."""
        return self.figure[BEST] < self.figure["ours"]

    @cached_property
    def wrong(self) -> dict[str, str]:
        """Name -> text of each wrong solution."""
        return self._solutions("wrong/")

    @cached_property
    def right(self) -> dict[str, str]:
        """Name -> text of each right solution that is not the milestone's own."""
        return self._solutions("right/")

    @cached_property
    def answers(self) -> dict[str, Answer]:
        """Mistake -> its answer, as far as they are recorded."""
        file = self.files.get(FILE)
        return {} if file is None else read_answers(file.data.decode("utf-8"))

    def mistake_of(self, answer: Answer | None) -> str | None:
        """The mistake that gives this answer."""
        return next((name for name, known in self.answers.items() if answer and known.is_like(answer)), None)

    def _solutions(self, under: str) -> dict[str, str]:
        return {
            path.removeprefix(under).removesuffix(".py"): file.data.decode("utf-8")
            for path, file in sorted(self.files.items())
            if path.startswith(under)
        }

    def message(self, function: str) -> str:
        """What a blanked function raises."""
        return f"exercise {self.id}: {function} is not written yet"

    def blanked(self, text: str) -> str:
        """The exercise's file with its functions emptied."""
        for function in self.functions:
            text = blank.blank(text, function, self.message(function), self.file)
        return text

    def with_functions_of(self, text: str, other: str, where: str = "the solution") -> str:
        """`text` with this exercise's functions as `other` has them; those that `other` lacks stay."""
        for function in self.functions:
            if function in blank.functions(other):
                text = blank.replace(text, function, blank.source_of(other, function, where), self.file)
        return text

    def written_into(self, text: str, other: str) -> str:
        """The same for what was written without the rest of the file: what `other` has besides, imports and helpers,
        comes at the end."""
        own = {function.partition(".")[0] for function in self.functions}
        more = [node for node in ast.parse(other).body if getattr(node, "name", "") not in own]
        sources = [ast.get_source_segment(other, node) or "" for node in more]
        return "\n\n".join([self.with_functions_of(text, other), *sources])

    def starting(self, text: str) -> str:
        """The exercise's functions alone, as `text` has them: methods under their class."""
        parts, owner = [], ""
        for function in self.functions:
            here = function.rpartition(".")[0]
            parts.append(f"class {here}:\n" if here and here != owner else "")
            parts.append(blank.source_of(text, function, self.file).strip("\n") + "\n")
            owner = here
        return "\n".join(filter(None, parts)).replace(":\n\n", ":\n")

    def is_called(self, name: str) -> bool:
        """Whether a person may mean this one: 1, 01, block-pool, 01-block-pool, m3/01, m3/block-pool …"""
        milestone, slash, rest = name.lower().rpartition("/")
        number = self.folder[:2]
        known = {self.folder, self.name, number, str(int(number))}
        return rest in known and (not slash or milestone == f"m{self.milestone}")


def load_exercises(snapshot: Snapshot, number: int) -> list[Exercise]:
    """The exercises of milestone `number`, in order; every error names the file."""
    root = f"{LABS}/m{number}/"
    folders: dict[str, dict[str, File]] = {}
    support: dict[str, File] = {}
    for path, file in snapshot.items():
        if path.startswith(root):
            folder, slash, rest = path.removeprefix(root).partition("/")
            if slash:
                folders.setdefault(folder, {})[rest] = file
            elif folder.endswith(".py"):
                support[folder] = file
            else:
                raise MilestoneError(f"{path}: unknown file; beside the exercises there may be support.py only")
    exercises = [_load(number, folder, folders[folder], support) for folder in sorted(folders)]
    for at, exercise in enumerate(exercises, int(exercises[0].folder[:2] != "00") if exercises else 1):
        if int(exercise.folder[:2]) != at:
            raise MilestoneError(f"{root}{exercise.folder}: exercises count from 00 without a gap, expected {at:02}")
    taken: dict[tuple[str, str], Exercise] = {}
    for exercise in exercises:
        for function in exercise.functions:
            if other := taken.get((exercise.file, function)):
                raise MilestoneError(f"{root}{exercise.folder}: {function} is blanked by {other.folder} already")
            taken[exercise.file, function] = exercise
    return exercises


def _load(number: int, folder: str, files: dict[str, File], support: dict[str, File]) -> Exercise:
    where = f"{LABS}/m{number}/{folder}"
    if not _FOLDER.fullmatch(folder):
        raise MilestoneError(f"{where}: a folder's name must be like 01-block-pool")
    for path in files:
        if not _FILES.fullmatch(path):
            known = (
                "exercise.toml, equivalent.toml, mistakes.json, en.md, zh.md, judge.py, own.py, wrong/*.py, right/*.py"
            )
            raise MilestoneError(f"{where}/{path}: unknown file; known are {known}")
    for path in ("exercise.toml", "en.md", "zh.md", "judge.py"):
        if path not in files:
            raise MilestoneError(f"{where}/{path} is missing")
    table = _table(f"{where}/exercise.toml", files["exercise.toml"])
    pages = {
        language: parse_page(f"{where}/{language}.md", files[f"{language}.md"].data.decode("utf-8"), language)
        for language in LANGUAGES
    }
    exercise = Exercise(number, folder, **table, pages=pages, files=files, support=support)
    if bool(exercise.figure) != (OWN in files) or (exercise.figure and exercise.figure.keys() != {"ours", BEST}):
        raise MilestoneError(
            f"{where}: an open task has {OWN}, and figure = {{ ours = …, best = … }}; nothing else has"
        )
    _check_alike(where, pages)
    if len(exercise.wrong) < 2:
        raise MilestoneError(f"{where}/wrong: must have two wrong solutions or more, got {len(exercise.wrong)}")
    if exercise.wrong.keys() != pages["en"].mistakes.keys():
        raise MilestoneError(
            f"{where}: wrong/ and the Mistakes of en.md must have the same names, got "
            f"{', '.join(sorted(exercise.wrong))} and {', '.join(sorted(pages['en'].mistakes))}"
        )
    return exercise


def _table(where: str, file: File) -> dict[str, Any]:
    try:
        table: dict[str, Any] = {"seconds": 10, "figure": {}, **tomllib.loads(file.data.decode("utf-8"))}
    except tomllib.TOMLDecodeError as error:
        raise MilestoneError(f"{where}: {error}") from error
    kinds = {"file": str, "functions": list, "note": str, "minutes": int, "seconds": int, "figure": dict}
    if unknown := sorted(table.keys() - kinds.keys()):
        raise MilestoneError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(kinds)}")
    for key, kind in kinds.items():
        if key not in table:
            raise MilestoneError(f"{where}: {key} is missing")
        if not isinstance(table[key], kind) or (not table[key] and key != "figure"):
            raise MilestoneError(f"{where}: {key} must be a {kind.__name__} that is not empty, got {table[key]!r}")
    if not all(isinstance(name, str) for name in table["functions"]):
        raise MilestoneError(f"{where}: functions must be qualified names, got {table['functions']!r}")
    if not 1 <= table["seconds"] <= MAX_SECONDS:
        raise MilestoneError(f"{where}: seconds must be 1 to {MAX_SECONDS}, got {table['seconds']}")
    if not 5 <= table["minutes"] <= MAX_MINUTES:
        raise MilestoneError(f"{where}: minutes must be 5 to {MAX_MINUTES}, got {table['minutes']}")
    return table


def _check_alike(where: str, pages: dict[str, Page]) -> None:
    en, zh = pages["en"], pages["zh"]
    shapes = {
        "as many invariants": (len(en.invariants), len(zh.invariants)),
        "the same mistakes": (list(en.mistakes), list(zh.mistakes)),
        "the same answers": ([q.answer for q in en.questions], [q.answer for q in zh.questions]),
        "as many options": ([len(q.options) for q in en.questions], [len(q.options) for q in zh.questions]),
    }
    for what, (here, there) in shapes.items():
        if here != there:
            raise MilestoneError(f"{where}: en.md and zh.md must have {what}, got {here} and {there}")


def solved_tree(course: Course, number: int, exercises: list[Exercise] | None = None) -> Snapshot:
    """The milestone's tree with the files that open tasks bring. exercises: the milestone's, where they are known."""
    row = load_exercises(course.snapshot, number) if exercises is None else exercises
    return {**course.tree(number), **brought(row)}


def brought(exercises: list[Exercise]) -> dict[str, File]:
    """The files that open tasks bring, with our solutions."""
    return {e.file: e.files[OWN] for e in exercises if OWN in e.files}


def exercise_problems(exercises: list[Exercise], tree: Snapshot) -> list[str]:
    """Exercises that do not fit the milestone's tree, one line each."""
    found = []
    tree = {**tree, **brought(exercises)}
    for exercise in exercises:
        where = f"{LABS}/{exercise.id}"
        if exercise.file not in tree:
            found.append(f"{where}: {exercise.file} is not in m{exercise.milestone}")
            continue
        text = tree[exercise.file].data.decode("utf-8")
        try:
            exercise.blanked(text)
        except MilestoneError as error:
            found.append(f"{where}: {error}")
            continue
        for language in LANGUAGES:
            if f"docs/{language}/{exercise.note}" not in tree:
                found.append(f"{where}: note docs/{language}/{exercise.note} is not in m{exercise.milestone}")
        for under, solutions in (("wrong", exercise.wrong), ("right", exercise.right)):
            problems = _solution_problems(exercise, text, solutions)
            found += [f"{where}/{under}/{name}.py: {problem}" for name, problem in problems]
    return found


def _solution_problems(exercise: Exercise, text: str, solutions: dict[str, str]) -> list[tuple[str, str]]:
    found = []
    for name, solution in solutions.items():
        try:
            defined = blank.functions(solution)
        except SyntaxError as error:
            found.append((name, f"line {error.lineno}: {error.msg}"))
            continue
        if extra := defined.keys() - set(exercise.functions):
            found.append((name, f"defines {min(extra)}, which is not one of the exercise's functions"))
        elif not defined:
            found.append((name, "defines none of the exercise's functions"))
        else:
            for function in defined:
                here, there = blank.parameters(solution, function), blank.parameters(text, function)
                if here != there:
                    wanted = f"must have the parameters {', '.join(there)}; got {', '.join(here)}"
                    found.append((name, f"{function} {wanted}"))
    return found
