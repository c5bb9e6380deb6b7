"""`folovllm trace view | export | info`: what a trace holds, as a page, for Perfetto, or in a few lines.

vLLM: none
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from folovllm.tracing.page import Texts
    from folovllm.tracing.reader import Trace


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "trace", help="look at what --trace wrote", description="Look at a trace, the file that --trace writes."
    )
    kinds = parser.add_subparsers(dest="trace_command", metavar="WHAT", required=True)

    text = "One page, no network: timeline, block map, budget, latencies, and each step in words. Two traces: compared."
    view = kinds.add_parser("view", help="a page to look at in a browser", description=text)
    view.add_argument("files", metavar="TRACE", nargs="+", help="a trace; two are shown side by side")
    view.add_argument("-o", "--output", metavar="FILE", help="the page (default: the first trace's name with .html)")
    text = "a folder with the tokenizer of the trace's model (default: the one that the trace names, if it is here)"
    view.add_argument("--tokenizer", metavar="FOLDER", help=text)
    view.add_argument("--no-texts", action="store_true", help="leave prompts and generated texts out of the page")
    view.set_defaults(run=run_view)

    text = "A file for https://ui.perfetto.dev or chrome://tracing, in the Trace Event Format."
    export = kinds.add_parser("export", help="for Perfetto and chrome://tracing", description=text)
    export.add_argument("file", metavar="TRACE", help="a trace")
    export.add_argument("--perfetto", metavar="FILE", required=True, help="where to write it")
    export.set_defaults(run=run_export)

    info = kinds.add_parser("info", help="what is in it, in a few lines", description="What a trace holds.")
    info.add_argument("file", metavar="TRACE", help="a trace")
    info.add_argument("--json", action="store_true", help="print it as one JSON object")
    info.set_defaults(run=run_info)


def run_view(args: argparse.Namespace) -> int:
    if len(args.files) > 2:
        raise ValueError(f"a page shows one trace or two, got {len(args.files)}")
    output = Path(args.output) if args.output else Path(args.files[0]).with_suffix(".html")
    _check_target(output, args.files)

    from folovllm.tracing.page import make_page
    from folovllm.tracing.reader import read_trace
    from folovllm.utils.named_files import writing

    if args.no_texts and args.tokenizer:
        raise ValueError("--tokenizer and --no-texts must not be given together: without texts none is needed")
    traces = [read_trace(name) for name in args.files]
    page = make_page(traces, [None if args.no_texts else _texts(trace, args.tokenizer) for trace in traces])
    with writing("output", output) as file:
        file.write(page)
    print(f"written: {output} ({len(page) / 1e6:.1f} MB)", file=sys.stderr)
    return 0


def _texts(trace: Trace, tokenizer: str | None) -> Texts | None:
    """None, and a line on stderr that says why, where there are none. A tokenizer that was asked for must be there."""
    from folovllm.tracing.texts import NoTextsError, find_tokenizer, texts_of

    try:
        return texts_of(trace, find_tokenizer(trace, tokenizer))
    except NoTextsError as error:
        if tokenizer is not None:
            raise
        print(f"without texts: {error}", file=sys.stderr)
        return None


def run_export(args: argparse.Namespace) -> int:
    output = Path(args.perfetto)
    _check_target(output, [args.file])

    from folovllm.tracing.perfetto import write_perfetto
    from folovllm.tracing.reader import read_trace
    from folovllm.utils.named_files import writing

    trace = read_trace(args.file)
    with writing("perfetto", output) as file:
        count = write_perfetto(trace, file)
    print(f"written: {output} ({count:,} events); open it at https://ui.perfetto.dev", file=sys.stderr)
    return 0


def run_info(args: argparse.Namespace) -> int:
    import json

    from folovllm.tracing.reader import read_trace
    from folovllm.tracing.summary import summarize

    summary = summarize(read_trace(args.file))
    if args.json:
        print(json.dumps(summary, indent=2))
        return 0
    from rich.table import Table
    from rich.text import Text

    from folovllm.entrypoints.cli.console import PlainConsole

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in summary.items():
        shown = _shown(value)
        table.add_row(Text(name.replace("_", " "), style="bold"), Text(shown))
    PlainConsole().print(table)
    return 0


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _check_target(path: Path, sources: list[str]) -> None:
    from folovllm.utils.named_files import check_target

    check_target("output", path)
    for source in sources:
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise ValueError(f"output must not be the trace itself, got {str(path)!r}")
