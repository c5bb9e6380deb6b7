"""`folovllm chat` at the root: sampling defaults of the checkpoint, and what is typed during an answer is not shown.

vLLM: entrypoints/cli/openai.py (ChatCommand)
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout, suppress
from typing import Any

from rich.cells import cell_len

from folovllm.config import EMBEDDED_MODEL, ModelConfig
from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.parser import ENTRY, add_sampling_arguments
from folovllm.entrypoints.generation_defaults import load_generation_defaults


def extend(parser: argparse.ArgumentParser) -> None:
    own = {"temperature": "0.7; 0 for the embedded model", "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    own["repetition_penalty"] = 1.0
    said = {name: f"the checkpoint's own, else {value}" for name, value in own.items()}
    add_sampling_arguments(parser, **ENTRY, **said)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """What is not given is taken from the checkpoint's generation_config.json, if it is there."""
    model = ModelConfig(getattr(args, "model", EMBEDDED_MODEL))
    for name, value in load_generation_defaults(model).items():
        if name not in args:
            setattr(args, name, value)
    args.observers = (*args.observers, hide_keys)
    _show_keys(False)  # until the model is loaded
    try:
        with redirect_stdout(WordWrap(sys.stdout)) if sys.stdout.isatty() else nullcontext():
            return commands.chat(args)
    finally:
        _show_keys(True)


class WordWrap:
    """A terminal that breaks lines between words. Text comes in pieces, so that a word is kept until its end; wide
    characters, such as 汉字, may each begin a line."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal
        self._column, self._space, self._word = 0, "", ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)

    def write(self, text: str) -> int:
        for char in text:
            is_wide = cell_len(char) > 1
            if is_wide or char.isspace():
                self._put()
            if char == "\n":
                self._terminal.write(char)
                self._column, self._space = 0, ""
            elif char.isspace():
                self._space += char
            else:
                self._word += char
                if is_wide:
                    self._put()
        return len(text)

    def _put(self) -> None:
        size = len(self._space) + cell_len(self._word)
        if not self._word:
            return
        if self._column and self._column + size > shutil.get_terminal_size().columns:
            self._terminal.write("\n")
            self._column, self._space, size = 0, "", cell_len(self._word)
        self._terminal.write(self._space + self._word)
        self._column += size
        self._space = self._word = ""


def hide_keys(engine: Any) -> None:
    """What is typed during an answer of this engine is not shown in the midst of it: it waits for the next line."""
    generate_stream = engine.generate_stream

    def quiet(stream: Iterator[Any]) -> Iterator[Any]:
        _show_keys(False)
        try:
            yield from stream
        finally:
            _show_keys(True)

    engine.generate_stream = lambda *args: quiet(generate_stream(*args))
    _show_keys(True)


def _show_keys(is_shown: bool) -> None:
    with suppress(ImportError):  # a system without it
        import termios

        if sys.stdin.isatty():
            mode: list[Any] = termios.tcgetattr(sys.stdin)
            mode[3] = mode[3] | termios.ECHO if is_shown else mode[3] & ~termios.ECHO
            termios.tcsetattr(sys.stdin, termios.TCSANOW, mode)
