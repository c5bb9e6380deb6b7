"""`folovllm bench throughput | latency | …`: prints a table; --json keeps all of it. One file here is one command.

The commands are looked for and not listed, so that one arrives as a new file and nothing else changes. A file has
`add_parser(kinds)` for a command of its own, or `extend(commands)` for more options of another file's command.

vLLM: entrypoints/cli/benchmark/main.py
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench", help="measure speed and memory, also against Hugging Face", description="Measure the engine."
    )
    kinds = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    files = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]
    for file in files:
        if hasattr(file, "add_parser"):
            file.add_parser(kinds)
    # Last: the commands are there by now. One that wraps what they run comes behind those that set it.
    for file in sorted(files, key=lambda file: getattr(file, "WRAPS_COMMANDS", False)):
        if hasattr(file, "extend"):
            file.extend(kinds.choices)
