"""`python -m milestones.site pages | parity | terms | comments | words | build | links`: the pages and their gates."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from milestones.site import comment_entries, live, pages, terms
from milestones.site.comments import FOLDER
from milestones.site.links import markdown_problems, site_problems, way_problems
from milestones.site.parity import compare
from milestones.site.source import ROOT
from milestones.site.way import stops
from milestones.site.words import print_words

CONFIGS = {"en": "mkdocs.yml", "zh": "mkdocs.zh.yml"}
_CHOOSER = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>FoloVLLM</title>
<script>location.replace((navigator.language.startsWith("zh") ? "zh" : "en") + "/index.html")</script></head>
<body><a href="en/index.html">English</a> · <a href="zh/index.html" lang="zh">中文</a></body></html>
"""


def parity(docs: Path) -> int:
    """Prints every difference between the languages; 1 if there is any."""
    differences = compare(docs)
    console = Console()
    if not differences:
        number = len(list((docs / "en").rglob("*.md")))
        console.print(f"parity: {number} pages are alike in both languages")
        return 0
    table = Table(title="docs/en and docs/zh differ", title_justify="left")
    table.add_column("where", overflow="fold")
    table.add_column("what", overflow="fold")
    for difference in differences:
        table.add_row(difference.where, difference.what.replace("[", "\\["))
    console.print(table)
    console.print(f"parity: {len(differences)} differences")
    return 1


def comments(update: bool, accept: bool) -> int:
    """Prints what the code boxes of the core path lack in Chinese; 1 if there is anything."""
    if update or accept:
        print("\n\n".join([*comment_entries.update(comment_entries.look(), accept=accept), ""]))
    problems = comment_entries.problems(comment_entries.look())
    print("\n".join([*problems, f"comments: {len(problems)} problems"]))
    return int(bool(problems))


def print_terms() -> int:
    """Prints what is said with another word than that of docs/terms.toml; 1 if there is anything."""
    problems = list(terms.problems())
    print("\n".join([*problems, f"terms: {len(problems)} problems"]))
    return int(bool(problems))


def build(builder: str) -> int:
    """Builds both languages, warnings are errors, and a first page that leads to the reader's own."""
    print(live.build(), flush=True)
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    quiet = ["--quiet"] if builder == "mkdocs" else ["--clean"]
    for config in CONFIGS.values():
        command = [sys.executable, "-m", builder, "build", "--strict", *quiet, "-f", config]
        print("$", " ".join(["python", *command[1:]]), flush=True)
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code:
            return code
    (ROOT / "site" / "index.html").write_text(_CHOOSER, encoding="utf-8")
    print("site/index.html is the first page; it opens in a browser as it lies there")
    return 0


def links() -> int:
    """Prints every link that leads nowhere, in the site or on disk, or off the way; 1 if there is any."""
    site = ROOT / "site"
    if not (site / "index.html").is_file():
        print("links: there is no site/, run `python -m milestones.site build` first")
        return 1
    pages = stops(lambda path: (ROOT / path).read_text(encoding="utf-8"))
    problems = [*markdown_problems(ROOT), *site_problems(site.resolve())]
    problems += [problem for lang in CONFIGS for problem in way_problems(site, lang, pages)]
    for problem in problems:
        print(problem)
    print(f"links: {len(list(site.rglob('*.html')))} pages, {len(problems)} links lead nowhere, or off the way")
    return int(bool(problems))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m milestones.site", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fill = commands.add_parser("pages", help="write into the pages the code, tables and figures that they name")
    fill.add_argument("--check", action="store_true", help="write nothing, and fail where a page is not so")
    gate = commands.add_parser("parity", help="compare docs/en with docs/zh")
    gate.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder that holds en/ and zh/")
    commands.add_parser("terms", help=f"one word for one thing, as {terms.TERMS} has it")
    boxes = commands.add_parser("comments", help="the Chinese of the comments in code boxes: is it there, is it used?")
    boxes.add_argument("--update", action="store_true", help=f"write what is missing or has changed into {FOLDER}/")
    boxes.add_argument("--accept", action="store_true", help="the Chinese is right where only the English has changed")
    commands.add_parser("words", help="how long the pages are, in words and hours")
    make = commands.add_parser("build", help="build both languages into site/")
    make.add_argument("--with", dest="builder", choices=("mkdocs", "zensical"), default="mkdocs")
    commands.add_parser("links", help="follow every link of what `build` made, and of the Markdown as it lies")
    arguments = parser.parse_args(argv)
    if arguments.command == "pages":
        return pages.run(check=arguments.check)
    if arguments.command == "links":
        return links()
    if arguments.command == "comments":
        return comments(arguments.update, arguments.accept)
    if arguments.command == "terms":
        return print_terms()
    if arguments.command == "words":
        return print_words()
    return parity(arguments.docs) if arguments.command == "parity" else build(arguments.builder)


if __name__ == "__main__":
    sys.exit(main())
