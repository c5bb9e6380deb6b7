"""What one request enters on its way through a milestone's engine: files, functions, calls.

    python -m milestones path m1 m3 m6

A learner reads what runs. So each milestone's tree, built from the working tree, serves one request on the CPU
(the embedded model, float32) in a process of its own (path_worker.py), and what ran is counted. A decode step is
one from the middle of the request: nothing arrives in it and nothing ends. The whole way is add_request, the
prefill, all decode steps and the end.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milestones.chain import Course
from milestones.sources import Snapshot
from milestones.spec import Milestone, MilestoneError
from milestones.trees import build_tree, count_lines, write_tree

WORKER = Path(__file__).with_name("path_worker.py")
ENGINE = "folovllm/entrypoints/llm.py"  # a milestone without it serves no request
TIMEOUT = 300  # seconds for one milestone
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Walk:
    """What one request entered. A function is told from others by its file and qualified name."""

    milestone: str
    files: int  # of a decode step, as are the next three
    functions: int
    calls: int
    switches: int  # calls into another file than that of the call before
    way_files: int  # of the whole way, as are the next three
    way_lines: int
    function_lines: int  # of the functions that ran, without blank lines
    code_lines: int  # of the functions that ran, without blank lines, comments and docstrings
    package_lines: int  # of all of the milestone's package
    file_lines: dict[str, int]  # of the whole way: file -> its lines
    function_calls: dict[str, dict[str, int]]  # of a decode step: file -> function -> calls


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("milestones", metavar="mK", nargs="*", help="only these (default: all that have an engine)")
    command.add_argument("--greedy", action="store_true", help="take the likeliest token (default: draw by top_p)")
    command.add_argument("--files", action="store_true", help="list the files of the whole way")
    command.add_argument("--functions", action="store_true", help="list a decode step's functions with their calls")
    command.add_argument("--json", action="store_true", help="everything as JSON, for programs")


def choose(course: Course, names: list[str]) -> list[Milestone]:
    """The milestones called so; all that have an engine when none is named."""
    if not names:
        return [m for m in course.milestones if ENGINE in course.tree(m.number)]
    chosen = [course.get(name) for name in names]
    for milestone in chosen:
        if ENGINE not in course.tree(milestone.number):
            raise MilestoneError(f"{milestone.id} serves no request: it has no {ENGINE}; choose a later milestone")
    return chosen


def measure(course: Course, milestone: Milestone, *, greedy: bool = False) -> Walk:
    """Serve one request in `milestone`'s tree, and count what it enters.

    Raises:
        MilestoneError: its process failed or took too long.
    """
    tree = build_tree(course, milestone)
    with tempfile.TemporaryDirectory(prefix=f"folovllm-{milestone.id}-") as scratch:
        folder = Path(scratch).resolve()
        write_tree(tree, folder)
        try:
            done = subprocess.run(
                # -P: the worker's own folder stays off the path, so that the tree comes first.
                [sys.executable, "-P", str(WORKER), str(folder), json.dumps({"greedy": greedy})],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MilestoneError(f"{milestone.id} did not finish its request within {TIMEOUT} s") from error
    if done.returncode:
        raise MilestoneError(f"{milestone.id} failed: " + "\n".join(done.stderr.strip().splitlines()[-5:]))
    return count(milestone, tree, json.loads(done.stdout))


def count(milestone: Milestone, tree: Snapshot, seen: dict[str, Any]) -> Walk:
    """The figures of what the worker has seen."""
    functions: dict[str, dict[str, int]] = seen["functions"]
    texts = {path: tree[f"folovllm/{path}"].data.decode("utf-8") for path in sorted(seen["first_lines"])}
    spans = [function_lines(text, set(seen["first_lines"][path])) for path, text in texts.items()]
    lines = {path: text.count("\n") for path, text in texts.items()}
    return Walk(
        milestone=milestone.id,
        files=len(functions),
        functions=sum(len(names) for names in functions.values()),
        calls=sum(sum(names.values()) for names in functions.values()),
        switches=seen["switches"],
        way_files=len(lines),
        way_lines=sum(lines.values()),
        function_lines=sum(written for written, code in spans),
        code_lines=sum(code for written, code in spans),
        package_lines=count_lines(tree),
        file_lines=lines,
        function_calls={path: dict(sorted(names.items())) for path, names in sorted(functions.items())},
    )


def function_lines(text: str, first_lines: set[int]) -> tuple[int, int]:
    """Lines of the functions that begin at `first_lines` (decorators count): those with something on them,
    and those of them that hold code."""
    inside: set[int] = set()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        first = min([node.lineno, *(d.lineno for d in decorators)])
        if first in first_lines:
            inside |= _lines(first, node.end_lineno)
        if not isinstance(node, ast.Lambda) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= _lines(node.body[0].lineno, node.body[0].end_lineno)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code |= _lines(token.start[0], token.end[0])
    written = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    return len(inside & written), len((inside & code) - docstrings)


def _lines(first: int, last: int | None) -> set[int]:
    assert last is not None  # ast.parse() sets it
    return set(range(first, last + 1))
