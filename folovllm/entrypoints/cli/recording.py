"""`--trace FILE` and `--nvtx` for every command that makes an engine.

A command with engines in this process gives them `args.observers`; `serve` gives the options to the engine's process.

vLLM: none
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

Run = Callable[[argparse.Namespace], int]


def extend(commands: Mapping[str, argparse.ArgumentParser]) -> None:
    for name in ("demo", "generate", "chat"):
        add_recording(commands[name])
    add_options(commands["serve"], texts=False)  # whose texts are other people's


def add_recording(parser: argparse.ArgumentParser) -> None:
    """Options to record the engines that this command makes in this process."""
    add_options(parser, texts=True)
    observers = parser.get_default("observers") or ()
    parser.set_defaults(run=_recorded(parser.get_default("run")), observers=observers)


def add_options(parser: argparse.ArgumentParser, *, texts: bool) -> None:
    group = parser.add_argument_group("looking at it")
    text = "write a record of every step; folovllm trace view shows it. A second engine's goes to FILE-2, and so on"
    group.add_argument("--trace", metavar="FILE", help=text)
    text = f"whether the trace has prompts and tokens, or how many (default: {'with' if texts else 'without'} them)"
    group.add_argument("--trace-texts", action=argparse.BooleanOptionalAction, help=text)
    group.add_argument("--nvtx", action="store_true", help="name the parts of each step in NVIDIA's profilers")


def recording_options(args: argparse.Namespace, *, texts: bool) -> dict[str, Any]:
    """What was given of `trace`, `trace_texts` and `nvtx`; texts: whether a trace has them where that is not said."""
    if args.trace is None and args.trace_texts is not None:
        raise ValueError("--trace-texts must be given with a trace: add --trace FILE")
    texts = texts if args.trace_texts is None else args.trace_texts
    return {"trace": args.trace, "trace_texts": texts, "nvtx": args.nvtx}


def _recorded(run: Run) -> Run:
    def run_recorded(args: argparse.Namespace) -> int:
        options = recording_options(args, texts=True)
        if args.trace is None and not args.nvtx:
            return run(args)
        with recording(**options) as observe:
            args.observers = (*args.observers, observe)
            return run(args)

    return run_recorded


@contextmanager
def recording(trace: str | None, *, trace_texts: bool, nvtx: bool) -> Iterator[Callable[[Any], None]]:
    """Yields what an engine is shown to, and then listens to it until the end of the block."""
    from folovllm.tracing.attach import attach
    from folovllm.tracing.nvtx import attach_nvtx
    from folovllm.tracing.writer import TraceWriter

    # The first file is opened at once: a path that cannot be written is refused before a model is loaded.
    writers = [] if trace is None else [TraceWriter(trace)]
    num_engines = 0
    with ExitStack() as ending:
        for writer in writers:
            ending.callback(writer.close)

        def observe(engine: Any) -> None:
            nonlocal num_engines
            num_engines += 1
            if nvtx:
                ending.callback(attach_nvtx(engine))
            if trace is not None:
                if num_engines > 1:
                    writers.append(TraceWriter(numbered(Path(trace), num_engines)))
                ending.callback(attach(engine, writers[-1], texts=trace_texts).close)

        yield observe
    if writers:
        from folovllm.entrypoints.commands import notes

        if whole := [writer.path for writer in writers if writer.is_whole]:
            names = ", ".join(map(str, whole))
            notes.print(f"traced: {names} · folovllm trace view {whole[0]}", style="dim", markup=False)
        for writer in writers:  # behind what the command printed: answers are worth more than their trace
            writer.check_whole()


def numbered(path: Path, number: int) -> Path:
    """run.gz -> run-2.gz"""
    return path.with_name(f"{path.stem}-{number}{path.suffix}")
