"""The code that a page shows: which of it runs, what it prints, and what is checked of the rest.

A page's Python blocks run one after the other in one process, as a reader would type them in. Of a console block each
command is run, unless it belongs to those that take minutes or change the machine (`NOT_RUN`): their options, their
paths and their targets are checked. What else cannot run says so above the block, and why:

    <!-- not run: gpu -->

A `text` block straight behind a block of code is what that code prints. Where the figures belong to a machine, its
fence says so, and what is held are the words around them:

    ```text {.machine}
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from milestones.site.directives import FenceTracker, written

MACHINE = "{.machine}"
REASONS = ("gpu", "network", "minutes", "fragment")
_MARKER = re.compile(r"^[ \t]*<!-- *not run: *(?P<reason>.*?) *-->[ \t]*$")
_HEREDOC = re.compile(r"<<-?\s*'?\"?(?P<word>\w+)")
_GREPS = re.compile(r"\| *grep [^\n]*$")
_LANGUAGES = {"python": "python", "py": "python", "bash": "bash", "console": "bash", "sh": "bash", "shell": "bash"}
# A command's first words -> how it is checked. It takes minutes, asks the network, waits for a person, or writes beside
# the repository.
NOT_RUN = {
    "folovllm bench": "folovllm",
    "folovllm chat": "folovllm",
    "folovllm info": "folovllm",  # a milestone's tree has no such command
    "folovllm serve": "folovllm",
    "python -m milestones.site": "module",
    "python -m milestones.run_snippets": "module",
    "python -m milestones": "milestones",  # but see RUN
    "python -m tests": "module",
    "python -m workshop": "module",
    "python -m pytest": "paths",
    "python -m pip": "nothing",
    "pip": "nothing",
    "curl": "nothing",  # of a server that is not there
    "nsys": "nothing",  # NVIDIA's profiler
    "git": "nothing",
    "cd": "nothing",
    "source": "nothing",
    ".": "nothing",
    "bash .ci/run": "nothing",
    "make": "targets",
}
RUN = "python -m milestones path"


@dataclass(slots=True)
class Output:
    """What a block is said to print, at the line where its fence opens."""

    line: int
    text: str
    mark: str = ""


@dataclass(slots=True)
class Block:
    """One fenced block of Python or of console commands, at the line where its fence opens."""

    line: int
    language: str
    code: str
    marker: str | None = None
    output: Output | None = None


@dataclass(slots=True)
class Plan:
    """What one page asks for: a script that has to end well, and commands whose words have to be right."""

    python: list[Block] = field(default_factory=list)
    bash: list[Block] = field(default_factory=list)
    checks: list[tuple[int, str, str]] = field(default_factory=list)
    marked: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    """The page's blocks of code in order, without the indentation that a list or a box gives them."""
    found: list[Block] = []
    fences = FenceTracker()
    marker: str | None = None
    behind: Block | None = None  # the block that has ended, with nothing but empty lines since
    opened, margin, code = 0, "", ""
    for number, line in enumerate(written(text), start=1):
        was_open, info = bool(fences.marks), fences.info
        inside = fences.feed(line)
        if inside and not was_open:
            opened, margin, code = number, line[: len(line) - len(line.lstrip())], ""
        elif inside and fences.marks:
            code += line.removeprefix(margin) + "\n"
        elif inside:
            kind = re.split(r"[\s{]", info, maxsplit=1)[0]
            if kind == "text" and behind:
                behind.output = Output(opened, code, info.removeprefix(kind).strip())
            behind = Block(opened, _LANGUAGES[kind], code, marker) if kind in _LANGUAGES else None
            found += [behind] if behind else []
            marker = None
        elif line.strip():
            match = _MARKER.match(line)
            marker, behind = match["reason"] if match else None, None
    return found


def statements(code: str) -> list[str]:
    """The commands of a console block, each whole: with its here-document, its loop, its continued lines."""
    found: list[str] = []
    current = ""
    closing: str | None = None
    for line in code.splitlines(keepends=True):
        current += line
        if closing is not None:
            closing = None if line.strip() == closing else closing
        elif match := _HEREDOC.search(line):
            closing = match["word"]
        if closing is None and not line.rstrip().endswith("\\") and _is_whole(current):
            if current.strip() and not _only_comments(current):
                found.append(current.strip("\n"))
            current = ""
    return found + ([current] if current.strip() else [])


def _is_whole(code: str) -> bool:
    if not re.search(r"['\"`(]|\b(?:for|if|while|do|case)\b|\{", code):
        return True  # nothing that could be left open: bash need not be asked
    return subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False).returncode == 0


def _only_comments(code: str) -> bool:
    return all(not line.strip() or line.lstrip().startswith("#") for line in code.splitlines())


def words(command: str) -> list[str]:
    """A command's words, without its comment, its variables and the folder of its interpreter."""
    try:
        found = shlex.split(command.replace("\\\n", " "), comments=True)
    except ValueError:
        return []
    while found and re.fullmatch(r"[A-Z_]+=\S*", found[0]):
        found.pop(0)
    if found:
        found[0] = found[0].removeprefix(".venv/bin/")
    return found


def check_of(command: str) -> str | None:
    """How a command is checked that is not run; None for one that is run."""
    text = " ".join(words(command))
    if text.startswith(RUN):
        return None
    for first, how in NOT_RUN.items():
        if text == first or text.startswith((first + " ", first + ".")):
            return how
    return None


def plan(text: str) -> Plan:
    found = Plan()
    for block in blocks(text):
        if block.output and block.output.mark not in ("", MACHINE):
            found.problems.append((block.output.line, f"text {block.output.mark}? The one mark is {MACHINE}"))
        if block.marker is not None:
            found.marked += 1
            if block.marker not in REASONS:
                found.problems.append((block.line, f"not run: {block.marker}? The reasons are {', '.join(REASONS)}"))
        elif block.language == "python":
            found.python.append(block)
        else:
            _plan_commands(block, found)
    return found


def _plan_commands(block: Block, found: Plan) -> None:
    commands = [(command, check_of(command)) for command in statements(block.code)]
    checks = [(block.line, command, how) for command, how in commands if how is not None]
    # What grep looks for is often not there, and that is the point; -c has said so.
    script = [f"{text} || [ $? = 1 ]" if _GREPS.search(text) else text for text, how in commands if how is None]
    found.checks += checks
    if script:
        found.bash.append(replace(block, code="\n".join(script)))
        if block.output and checks:
            found.problems.append((block.output.line, "cannot be held: of the commands above it some are not run"))


def pages(root: Path) -> list[Path]:
    """Every page whose code is held to this, the READMEs first."""
    notes = [path for lang in ("en", "zh") for path in sorted((root / "docs" / lang).rglob("*.md"))]
    return [*(root / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md")), *notes]
