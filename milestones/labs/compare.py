"""`compare`: after the work, the other right solutions beside one's own: the course's, and unlike ones."""

from __future__ import annotations

from rich.console import Console
from rich.rule import Rule

from milestones.chain import Course
from milestones.labs import blank
from milestones.labs.exercise import Exercise, solved_tree
from milestones.labs.lab import Lab
from milestones.labs.prose import python
from milestones.labs.words import say


def show_compared(console: Console, lab: Lab, course: Course, exercises: list[Exercise], exercise: Exercise) -> None:
    """One below the other, as code is too wide to stand side by side."""
    mine = sources(exercise, lab.read(exercise.file))
    ours = sources(exercise, solved_tree(course, lab.number, exercises)[exercise.file].data.decode("utf-8"))
    others = {name.replace("-", " "): text.strip() for name, text in exercise.right.items()}
    for name, text in {"": mine, "ours": ours, **others}.items():
        title = say(lab.language, {"": "mine", "ours": "ours"}.get(name, "another"), name=name)
        console.print(Rule(title, align="left", style="dim"))
        if name == "ours" and text == mine:
            console.print(say(lab.language, "same"))
        else:
            console.print(python(text, wrap=False), soft_wrap=True)  # a broken line could not be copied
    console.print()


def sources(exercise: Exercise, text: str) -> str:
    """The exercise's functions as `text`, its file, has them."""
    return "\n\n".join(blank.source_of(text, function, exercise.file).rstrip() for function in exercise.functions)
