"""`predict`: a question before coding; its answer is told after one has been given, and not before."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from milestones.labs.exercise import Exercise
from milestones.labs.lab import Lab
from milestones.labs.page import Question
from milestones.labs.prose import Prose
from milestones.labs.words import say
from milestones.spec import MilestoneError


def ask(console: Console, lab: Lab, exercise: Exercise, answer: str | None) -> int:
    """Ask the questions that are not answered yet: all of them at a terminal, one where `answer` is given."""
    done, questions = lab.done(exercise), exercise.pages[lab.language].questions
    while len(done.predictions) < len(questions):
        question = questions[len(done.predictions)]
        letters = "/".join(question.options)
        if answer is None or sys.stdin.isatty():
            _show(console, question)
        if answer is None and not sys.stdin.isatty():
            console.print(say(lab.language, "answer_command", name=exercise.name, letters=letters), markup=False)
            return 0
        given = answer if answer is not None else _ask(console, lab, letters)
        if given not in question.options:
            if answer is not None:
                raise MilestoneError(say(lab.language, "bad_answer", letters=letters, given=repr(given)))
            continue
        done.predictions.append(given)
        lab.save()
        _reveal(console, lab, question, given)
        if answer is not None:
            break
    if len(done.predictions) == len(questions):
        right = sum(given == q.answer for given, q in zip(done.predictions, questions, strict=True))
        told = say(lab.language, "predict_done", name=exercise.name, right=right, total=len(questions))
        console.print(told, style="dim", markup=False)
    return 0


def _ask(console: Console, lab: Lab, letters: str) -> str:
    try:
        return console.input(Text(say(lab.language, "answer_how", letters=letters))).strip().lower()
    except (EOFError, KeyboardInterrupt):
        raise MilestoneError(say(lab.language, "no_answer")) from None


def _show(console: Console, question: Question) -> None:
    console.print(Prose(question.text))
    console.print()
    for letter, option in question.options.items():
        console.print(Padding(Prose(f"**{letter}**  {option}"), (0, 0, 0, 2)))
    console.print()


def _reveal(console: Console, lab: Lab, question: Question, given: str) -> None:
    if given == question.answer:
        console.print(say(lab.language, "right", letter=given), style="bold green")
    else:
        console.print(say(lab.language, "not_right", given=given, letter=question.answer), style="bold yellow")
    console.print(Padding(Prose(question.reason), (0, 0, 1, 2)))
