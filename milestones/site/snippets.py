"""The code that a page shows: which of it runs, and what is checked of the rest.

A page's Python blocks run one after the other in one process, as a reader would type them in. Of a console block each
command is run, unless it belongs to those that take minutes or change the machine (`NOT_RUN`): their options, their
paths and their targets are checked. What else cannot run says so above the block, and why:

    <!-- not run: gpu -->
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from milestones.site.directives import FenceTracker

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
    "folovllm serve": "folovllm",
    "python -m milestones.site": "module",
    "python -m milestones.run_snippets": "module",
    "python -m milestones": "milestones",
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


@dataclass(slots=True)
class Block:
    """One fenced block of Python or of console commands, at the line where its fence opens."""

    line: int
    language: str
    code: str
    marker: str | None = None


@dataclass(slots=True)
class Plan:
    """What one page asks for: a script that has to end well, and commands whose words have to be right."""

    python: list[Block] = field(default_factory=list)
    bash: list[tuple[int, str]] = field(default_factory=list)
    checks: list[tuple[int, str, str]] = field(default_factory=list)
    marked: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    """The page's blocks of code in order, without the indentation that a list or a box gives them."""
    found: list[Block] = []
    fences = FenceTracker()
    marker: str | None = None
    current: Block | None = None
    margin = ""
    for number, line in enumerate(text.splitlines(), start=1):
        was_open = bool(fences.marks)
        inside = fences.feed(line)
        if inside and not was_open:
            language = _LANGUAGES.get(re.split(r"[\s{]", fences.info, maxsplit=1)[0])
            margin = line[: len(line) - len(line.lstrip())]
            current = Block(number, language, "", marker) if language else None
            marker = None
        elif inside and fences.marks and current:
            current.code += line.removeprefix(margin) + "\n"
        elif inside and current:
            found.append(current)
            current = None
        elif match := _MARKER.match(line):
            marker = match["reason"]
        elif line.strip():
            marker = None
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
    for first, how in NOT_RUN.items():
        if text == first or text.startswith((first + " ", first + ".")):
            return how
    return None


def plan(text: str) -> Plan:
    found = Plan()
    for block in blocks(text):
        if block.marker is not None:
            found.marked += 1
            if block.marker not in REASONS:
                found.problems.append((block.line, f"not run: {block.marker}? The reasons are {', '.join(REASONS)}"))
        elif block.language == "python":
            found.python.append(block)
        else:
            script = []
            for command in statements(block.code):
                how = check_of(command)
                if how is None:
                    # What grep looks for is often not there, and that is the point; -c has said so.
                    script.append(f"{command} || [ $? = 1 ]" if _GREPS.search(command) else command)
                else:
                    found.checks.append((block.line, command, how))
            if script:
                found.bash.append((block.line, "\n".join(script)))
    return found


def pages(root: Path) -> list[Path]:
    """Every page whose code is held to this, the READMEs first."""
    notes = [path for lang in ("en", "zh") for path in sorted((root / "docs" / lang).rglob("*.md"))]
    return [*(root / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md")), *notes]
