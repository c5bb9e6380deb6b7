"""`folovllm bench KIND --trace FILE --watch`: for the kinds that make an engine in this process.

The others say why they cannot, and what to do instead, rather than that they do not know the option.

vLLM: none
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from folovllm.entrypoints.cli.recording import Run, add_recording

WRAPS_COMMANDS = True
WITH_ENGINE = (
    "ablate",
    "decode",
    "invariance",
    "kvcache",
    "latency",
    "sampler",
    "serve-load",
    "serve-throughput",
    "step",
    "throughput",
)
# Of these, when there is none, and what to do instead.
UNLESS: dict[str, tuple[Callable[[argparse.Namespace], bool], str]] = {
    "serve-load": (
        lambda args: args.url is not None,
        "must not be given with --url: the engine is in the server's process. Start that one with `folovllm serve "
        "--trace FILE`",
    ),
    "sampler": (
        lambda args: not args.end_to_end,
        "must come with --end-to-end: a step of the sampler alone has no engine",
    ),
}
# Where the engine is in another process, or is somebody else's tracer to begin with.
ELSEWHERE = {
    "load": "each load is a process of its own, which computes no step: use `folovllm generate --trace FILE`",
    "trace": "it writes traces itself, to measure what that takes: use `folovllm bench decode --trace FILE`",
}
NO_ENGINE = "`bench {}` has no engine with steps to write down: use `folovllm bench decode --trace FILE`"


def extend(commands: dict[str, argparse.ArgumentParser]) -> None:
    for name, command in commands.items():
        if name in WITH_ENGINE:
            add_recording(command)
            if name in UNLESS:
                command.set_defaults(run=_unless(*UNLESS[name], command.get_default("run")))
        elif "--trace" not in command._option_string_actions:
            reason = ELSEWHERE.get(name, NO_ENGINE.format(name))
            command.add_argument("--trace", metavar="FILE", type=_refused(reason), help=argparse.SUPPRESS)


def _unless(is_absent: Callable[[argparse.Namespace], bool], reason: str, run: Run) -> Run:
    def checked(args: argparse.Namespace) -> int:
        for name in ("trace", "nvtx", "watch"):
            if getattr(args, name) and is_absent(args):
                raise ValueError(f"--{name} {reason}")
        return run(args)

    return checked


def _refused(reason: str) -> Callable[[str], NoReturn]:
    def refuse(_: str) -> NoReturn:
        raise argparse.ArgumentTypeError(reason)

    return refuse
