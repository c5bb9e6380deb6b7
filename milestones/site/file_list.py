"""Each file of a milestone's package in one line: the first sentence of its head.

    ::: files m6     a row for each file of M6: its path, the milestone that brings it, what it is

docs/files.zh.toml has that sentence in Chinese.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from milestones.site import source
from milestones.site.errors import DirectiveError
from milestones.site.vllm_map import arrival, code_path, mapped_files

CHINESE = "docs/files.zh.toml"
_TITLES = {"en": ("file", "since", "what it is"), "zh": ("文件", "始于", "是什么")}
_END = re.compile(r"(?<=[.!?)]) (?=[A-Z\"`(])|:?$")


def files_of(milestone: str) -> list[str]:
    """The files of the package at `milestone`, relative to it, without each `__init__.py` that only says what its
    folder is."""
    number = int(milestone.removeprefix("m"))
    return [name for name in mapped_files() if arrival(f"folovllm/{name}") <= number]


def first_sentence(path: Path) -> str:
    """Of a module's docstring, or of a C++ file's first comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        head = ast.get_docstring(source.tree_of(text)) or ""
    else:
        comment = re.match(r"(?://.*\n)*", text)
        head = re.sub(r"(?m)^// ?", "", comment[0] if comment else "")
    paragraph = " ".join(head.partition("\n\n")[0].split()).partition(" vLLM: ")[0]
    end = _END.search(paragraph)
    return paragraph[: end.start() if end else None].replace("|", "\\|")


def chinese() -> dict[str, str]:
    return tomllib.loads((source.ROOT / CHINESE).read_text(encoding="utf-8"))


def render(milestone: str, lang: str) -> str:
    known = chinese() if lang == "zh" else {}
    lines = [f"| {' | '.join(_TITLES[lang])} |", "|---|---|---|"]
    for name in files_of(milestone):
        path = f"folovllm/{name}"
        if lang == "zh" and name not in known:
            raise DirectiveError(f"{CHINESE} has no line for {name}")
        said = known[name] if lang == "zh" else first_sentence(source.locate(path, milestone))
        lines.append(f"| {code_path(name)} | M{arrival(path)} | {said} |")
    return "\n".join(lines)
