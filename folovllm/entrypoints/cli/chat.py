"""`folovllm chat` at the root: a checkpoint is drawn from as its makers say, and keys stay out of an answer.

vLLM: entrypoints/cli/openai.py (ChatCommand)
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import Any

from folovllm.config import EMBEDDED_MODEL, ModelConfig
from folovllm.core.observer import EngineObserver
from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.parser import ENTRY, explain
from folovllm.entrypoints.generation_defaults import load_generation_defaults
from folovllm.request import Request, Sequence


def extend(parser: argparse.ArgumentParser) -> None:
    own = {"temperature": "0.7; 0 for the embedded model", "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    own["repetition_penalty"] = 1.0
    explain(parser, **ENTRY, **{name: f"the checkpoint's own, else {value}" for name, value in own.items()})
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """What is not given is taken from the checkpoint's generation_config.json, if it is there."""
    model = ModelConfig(getattr(args, "model", EMBEDDED_MODEL))
    for name, value in load_generation_defaults(model).items():
        if name not in args:
            setattr(args, name, value)
    args.observers = (*args.observers, _Keys.look_at)
    _show_keys(False)  # until the model is loaded
    try:
        return commands.chat(args)
    finally:
        _show_keys(True)


class _Keys(EngineObserver):
    """What is typed during an answer is not shown in the midst of it: it waits for the next line."""

    @classmethod
    def look_at(cls, engine: Any) -> None:
        engine.observers.append(cls())
        _show_keys(True)

    def arrived(self, request: Request) -> None:
        _show_keys(False)

    def ended(self, seq: Sequence) -> None:
        _show_keys(True)


def _show_keys(is_shown: bool) -> None:
    with suppress(ImportError):  # a system without it
        import termios

        if sys.stdin.isatty():
            mode: list[Any] = termios.tcgetattr(sys.stdin)
            mode[3] = mode[3] | termios.ECHO if is_shown else mode[3] & ~termios.ECHO
            termios.tcsetattr(sys.stdin, termios.TCSANOW, mode)
