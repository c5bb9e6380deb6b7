"""Writes the first hour as a notebook: `python -m workshop.first_hour_notebook`, which makes examples/first_hour.ipynb.

    examples/one_file_engine.py    its sections, a code cell each
    docs/{en,zh}/first-hour.md     a cell of text for each stretch of prose, English above and Chinese below
                                   a command of the page becomes a cell, and what the page shows of it its output
                                   a line to break becomes a cell that breaks it, runs, and puts it right again

One notebook for both languages: the code would stand in both, and the reader of one skips half of each cell of text.
The first cell installs the package from its repository where it is missing, so the notebook needs no clone.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

from milestones.site.directives import MARK, FenceTracker, parse_directive, written
from milestones.site.source import SourceFile, excerpt

ROOT = Path(__file__).parents[1]
ENGINE = "examples/one_file_engine.py"
NOTEBOOK = ROOT / "examples/first_hour.ipynb"
LANGUAGES = ("en", "zh")

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
OWNER = REPOSITORY.removeprefix("https://github.com/")
COLAB = f"https://colab.research.google.com/github/{OWNER}/blob/main/examples/first_hour.ipynb"
CODESPACE = f"https://codespaces.new/{OWNER}"
INSTALL = f"""\
from importlib.util import find_spec

if find_spec("folovllm") is None:
    get_ipython().run_line_magic("pip", "install -q ipywidgets 'folovllm @ git+{REPOSITORY}'")"""
RUN = '''\
import shlex
import sys


def run(arguments: str = "") -> None:
    """What `python examples/one_file_engine.py ARGUMENTS` does."""
    sys.argv = ["one_file_engine.py", *shlex.split(arguments)]
    main()'''
HERE = {
    "en": "In this notebook the file stands in the next cells, section by section. Run all of them first.",
    "zh": "在这个 notebook 里，文件按小节放在下面几个单元格中。请先把它们全部运行一遍。",
}
# What the page says to a reader at a terminal -> what is true here.
SAID = {
    "en": {
        "In a clone, run `make demo` once, which sets up `.venv`, and then `source .venv/bin/activate`. Now:": (
            "`run()` is the file's command line:"
        ),
        "Give your own prompts behind the name of the file, and": "Give `run()` your own prompts in quotes, and",
        " It is also a notebook, `examples/first_hour.ipynb`, and opens "
        f"[in Colab]({COLAB}) or [a Codespace]({CODESPACE}).": "",
        "Two of them change the file; `git checkout examples/one_file_engine.py` takes that back.\n\n": "",
    },
    "zh": {
        "在克隆下来的仓库里运行一次 `make demo`，它会建好 `.venv`；再 `source .venv/bin/activate`。然后：": (
            "`run()` 就是这个文件的命令行："
        ),
        "把自己的提示词写在文件名后面；加上": "把自己的提示词加上引号交给 `run()`；加上",
        "这一页也有 notebook 版：`examples/first_hour.ipynb`，第一个单元格会从仓库安装这个包。"
        f"可以[在 Colab 里]({COLAB})打开，也可以[在 Codespace 里]({CODESPACE})打开。": "",
        "后两种要改文件里的一行；看完用 `git checkout examples/one_file_engine.py` 改回来。\n\n": "",
    },
}

Block = tuple[str, str]  # kind ("prose", "mark", "drawing", or a fence's language) and text


def main() -> None:
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
    print(f"wrote {NOTEBOOK.relative_to(ROOT)}")


def notebook() -> str:
    """The notebook's JSON."""
    source = (ROOT / ENGINE).read_text(encoding="utf-8")
    pages = {language: _blocks(_page(language)) for language in LANGUAGES}
    en, zh = pages["en"], pages["zh"]
    if [block for block in en if block[0] != "prose"] != [block for block in zh if block[0] != "prose"]:
        raise ValueError("docs/*/first-hour.md must have the same code, commands and outputs in the same order")
    pairs = zip(en, zh, strict=True)
    (_, intro), *rest = [(kind, _both(text, other) if kind == "prose" else text) for (kind, text), (_, other) in pairs]
    title, _, run_it = intro.partition("\n\n## ")
    cells = [_prose(title), _code(INSTALL), _prose(_both(HERE["en"], HERE["zh"]))]
    cells += [_code(part) for part in _sections(source)]
    cells += [_code(RUN), _prose(f"## {run_it}"), *_walk(rest, source)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    book = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(book, ensure_ascii=False, indent=1) + "\n"


def _walk(blocks: list[Block], source: str) -> list[dict[str, Any]]:
    """The cells of the page's own sections."""
    cells: list[dict[str, Any]] = []
    broken = ""  # the line to break, until a command has shown what comes of it
    for kind, text in blocks:
        if kind == "prose":
            cells.append(_prose(text))
        elif kind == "drawing":
            cells.append(_prose(f"![](../docs/figures/{text})"))
        elif kind == "mark":
            names = parse_directive(text).words[1:]
            file = SourceFile(ENGINE, source.splitlines(), ast.parse(source))
            cells.append(_prose("```python\n" + "\n\n".join(excerpt(file, name) for name in names) + "\n```"))
        elif kind == "diff":
            broken = text
        elif kind == "bash":
            arguments = shlex.split(text)[2:]
            call = f"run({shlex.join(arguments)!r})" if arguments else "run()"
            cells.append(_code(_broken(source, broken, call) if broken else call))
            broken = ""
        elif kind == "text":
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": _lines(text + "\n")}]
        else:
            raise ValueError(f"docs/en/first-hour.md has a block that no cell can be made of: {kind}")
    return cells


def _page(language: str) -> str:
    text = "\n".join(written((ROOT / f"docs/{language}/first-hour.md").read_text(encoding="utf-8"))) + "\n"
    for old, new in SAID[language].items():
        if text.count(old) != 1:
            raise ValueError(f"docs/{language}/first-hour.md must say once: {old}")
        text = text.replace(old, new)
    text = re.sub(r"^(?:<a id=.*|<!-- not run.*-->)\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\((?!\w+:)([^)#]+)\)", rf"](../docs/{language}/\1)", text)


def _blocks(text: str) -> list[Block]:
    """A page's prose, marks, drawings and fenced blocks, in order."""
    fences, number = FenceTracker(), 0
    lines: list[tuple[tuple[int, str], str]] = []
    for line in text.splitlines():
        was_open = bool(fences.marks)
        if fences.feed(line):
            number += not was_open
            if was_open and fences.marks:
                lines.append(((number, fences.info), line))
        elif match := MARK.match(line):
            number += 1
            lines.append(((number, "mark"), match["body"]))
            number += 1
        elif match := re.fullmatch(r"!\[\]\(.*/figures/(.+?)(?:\.zh)?\.svg\)", line):
            number += 1
            lines.append(((number, "drawing"), f"{match[1]}.svg"))
            number += 1
        else:
            lines.append(((number, "prose"), line))
        number += was_open and not fences.marks
    parts = [(key[1], "\n".join(line for _, line in part)) for key, part in groupby(lines, key=lambda line: line[0])]
    return [(kind, text.strip("\n")) for kind, text in parts if text.strip()]


def _both(en: str, zh: str) -> str:
    """A cell of text; each of its headings starts a new pair."""
    pairs = zip(re.split(r"\n(?=## )", en), re.split(r"\n(?=## )", zh), strict=True)
    return "\n\n".join(f"{a.strip()}\n\n{b.strip()}" for a, b in pairs)


def _sections(source: str) -> list[str]:
    """The file cut before each `# 1. …`, what stands above as the first; its last lines, which run it, are left out."""
    body, _, _ = source.partition('\n\nif __name__ == "__main__":')
    return [part.strip("\n") for part in re.split(r"\n+(?=# \d\. )", body)]


def _broken(source: str, diff: str, call: str) -> str:
    """A cell that puts the diff's line into its function, makes `call`, and takes it back."""
    old, new = (line[1:] for line in diff.splitlines())
    changed = source.replace(f"{old}\n", f"{new}  # <- broken\n")
    line = source[: source.index(old)].count("\n") + 1
    owner = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.lineno <= line <= (node.end_lineno or 0)
    )
    text = ast.get_source_segment(changed, owner) or ""
    if isinstance(owner, ast.ClassDef):
        (method,) = (
            node
            for node in owner.body
            if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
        )
        body = "\n".join(changed.splitlines()[method.lineno - 1 : method.end_lineno])
        text = f"class {owner.name}({owner.name}):\n{body}"
    return f"right = {owner.name}\n\n\n{text}\n\n\n{call}\n{owner.name} = right"


def _prose(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": "", "metadata": {}, "source": _lines(text)}


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": "",
        "metadata": {},
        "outputs": [],
        "source": _lines(text),
    }


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    main()
