"""`folovllm generate | chat | demo | serve | run-batch | complete | …`: the first three are every milestone's.

Parsing imports neither torch nor transformers: `--help` and a wrong option answer at once. A command imports
what it needs when it runs. What a user can get wrong ends in one line on stderr and exit status 2.

vLLM: entrypoints/cli/main.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from folovllm import __version__
from folovllm.entrypoints import commands
from folovllm.entrypoints.cli import generate, info, quantize, recording, remote, trace
from folovllm.entrypoints.cli.parser import Parser, one_line
from folovllm.model_loader.model_files import resolve_model_path

DESCRIPTION = "FoloVLLM: an LLM inference engine to learn from, in the shape of vLLM v1."


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(build_parser, argv)


def run_command(make_parser: Callable[[], Parser], argv: Sequence[str] | None) -> int:
    """The exit status of what was typed."""
    if not _prepare_streams():
        return 2
    try:
        try:
            args = make_parser().parse(argv)
            if isinstance(model := getattr(args, "model", None), str):
                resolve_model_path(model, weights=False)  # before torch is imported, which takes seconds
            return int(args.run(args))
        finally:
            sys.stdout.flush()  # here, where an error of it is caught
    except KeyboardInterrupt:
        return commands.INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has left; without this, the interpreter would complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, NotImplementedError, OSError) as error:
        if os.environ.get("FOLOVLLM_LOG_LEVEL", "").upper() == "DEBUG":
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def _prepare_streams() -> bool:
    """Make the standard streams take and give any text. False if there is no stdout to print to."""
    if sys.stderr is None:  # closed, `2>&-`: print() would fall back to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # it stays open
    if sys.stdout is None:
        print("error: stdout is closed: there is nowhere to print to", file=sys.stderr)
        return False
    if sys.stdin is None:  # closed, `<&-`: it reads as empty
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  it stays open
    # A terminal that cannot show 汉字 shows "?" and no traceback. Bytes that are no UTF-8 are refused where
    # they are used.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)
    return True


def build_parser() -> Parser:
    parser = Parser(prog="folovllm", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"folovllm {__version__}")
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_commands(choices)
    generate.extend(choices.choices["generate"], choices.choices["chat"])
    own = (module.__name__ for module in (remote, quantize, info))
    served = ("folovllm.serving.command", "folovllm.serving.run_batch")
    for module in (*served, *own, "folovllm.bench.command", trace.__name__):
        import_module(module).add_parser(choices)  # serving and benches are on higher floors
    for name in ("demo", "serve", "run-batch"):
        choices.choices[name].set_defaults(observers=(info.say_what_is_slow,))
    recording.extend(choices.choices)
    remote.extend(choices.choices["chat"])
    return parser
