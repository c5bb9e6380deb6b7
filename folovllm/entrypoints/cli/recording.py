"""`--trace FILE`, `--nvtx` and `--watch` for every command that makes an engine.

Such a command finds `args.observers`, and gives them to the engines that it makes.

vLLM: none
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from folovllm.tracing.attach import Attach

TRACED = ("demo", "generate", "chat", "serve")
# Not `chat`, whose terminal is the user's, and not `serve`, which has a page for it.
WATCHED = ("demo", "generate")
# Its texts are other people's, so a trace has them only where that is asked for.
TEXTS_OF_OTHERS = ("serve",)

Run = Callable[[argparse.Namespace], int]


def extend(commands: Mapping[str, argparse.ArgumentParser]) -> None:
    for name in TRACED:
        if name in commands:
            add_recording(commands[name], watch=name in WATCHED, texts=name not in TEXTS_OF_OTHERS)


def add_recording(parser: argparse.ArgumentParser, *, watch: bool = True, texts: bool = True) -> None:
    """Options to look at the engines that this command makes."""
    group = parser.add_argument_group("looking at it")
    text = "write a record of every step; folovllm trace view shows it. A second engine's goes to FILE-2, and so on"
    group.add_argument("--trace", metavar="FILE", help=text)
    text = f"whether the trace has prompts and tokens, or how many (default: {'with' if texts else 'without'} them)"
    group.add_argument("--trace-texts", action=argparse.BooleanOptionalAction, help=text)
    group.add_argument("--nvtx", action="store_true", help="name the parts of each step in NVIDIA's profilers")
    if watch:
        text = "a live view of requests, tokens/s, cache and texts; what the command prints comes after it"
        group.add_argument("--watch", action="store_true", help=text)
    observers = parser.get_default("observers") or ()
    parser.set_defaults(run=_recorded(parser.get_default("run"), texts), observers=observers)


def _recorded(run: Run, texts: bool) -> Run:
    def run_recorded(args: argparse.Namespace) -> int:
        if args.trace is None and args.trace_texts is not None:
            raise ValueError("--trace-texts must be given with a trace: add --trace FILE")
        is_watched = getattr(args, "watch", False)
        if args.trace is None and not args.nvtx and not is_watched:
            return run(args)
        with_texts = texts if args.trace_texts is None else args.trace_texts
        with recording(args.trace, texts=with_texts, nvtx=args.nvtx, watch=is_watched) as look:
            args.observers = (*args.observers, look)
            return run(args)

    return run_recorded


@contextmanager
def recording(trace: str | None, *, texts: bool = True, nvtx: bool, watch: bool) -> Iterator[Attach]:
    """Yields what gives an engine its observers, until the end of the block."""
    from folovllm.tracing.attach import attach
    from folovllm.tracing.nvtx import attach_nvtx
    from folovllm.tracing.writer import TraceWriter

    # The first file is opened at once: a path that cannot be written is refused before a model is loaded.
    writers = [] if trace is None else [TraceWriter(trace)]
    num_engines = 0
    with ExitStack() as looking:
        for writer in writers:
            looking.callback(writer.close)
        watcher = None
        if watch:
            from folovllm.entrypoints.cli.watch import Watcher

            watcher = looking.enter_context(Watcher())

        def look(engine: Any) -> None:
            nonlocal num_engines
            num_engines += 1
            if nvtx:
                looking.callback(engine.observers.remove, attach_nvtx(engine))
            if trace is not None:
                if num_engines > 1:
                    writers.append(TraceWriter(numbered(Path(trace), num_engines)))
                looking.callback(attach(engine, writers[-1], texts=texts).close)
            if watcher is not None:
                looking.callback(engine.observers.remove, watcher.look_at(engine))

        yield look
    if writers:
        from folovllm.entrypoints.commands import notes

        if whole := [writer.path for writer in writers if writer.is_whole]:
            names = ", ".join(map(str, whole))
            notes.print(f"traced: {names} · folovllm trace view {whole[0]}", style="dim", markup=False)
        for writer in writers:  # behind what the command printed: answers are worth more than their trace
            writer.check_whole()


def numbered(path: Path, number: int) -> Path:
    """run.jsonl -> run-2.jsonl"""
    return path.with_name(f"{path.stem}-{number}{path.suffix}")
