"""`folovllm bench KIND --trace FILE --watch`: for the kinds that make an engine in this process.

The others say why they cannot, and what to do instead, rather than that they do not know the option.

vLLM: none
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from folovllm.entrypoints.cli.recording import add_recording

WITH_ENGINE = ("decode", "invariance", "latency", "step", "throughput")
# Where the engine is in another process, or is somebody else's tracer to begin with.
ELSEWHERE = {
    "serve-load": "the engine is in the server's process: start that one with `folovllm serve --trace FILE`",
    "load": "each load is a process of its own, which computes no step: use `folovllm generate --trace FILE`",
    "trace": "it writes traces itself, to measure what that takes: use `folovllm bench decode --trace FILE`",
}
NO_ENGINE = "`bench {}` has no engine with steps to write down: use `folovllm bench decode --trace FILE`"


def extend(commands: dict[str, argparse.ArgumentParser]) -> None:
    for name, command in commands.items():
        if name in WITH_ENGINE:
            add_recording(command)
        elif "--trace" not in command._option_string_actions:
            reason = ELSEWHERE.get(name, NO_ENGINE.format(name))
            command.add_argument("--trace", metavar="FILE", type=_refused(reason), help=argparse.SUPPRESS)


def _refused(reason: str) -> Callable[[str], NoReturn]:
    def refuse(_: str) -> NoReturn:
        raise argparse.ArgumentTypeError(reason)

    return refuse
