"""`folovllm demo | generate | chat | info | bench`.

Parsing imports neither torch nor transformers: `--help` and a wrong option answer at once. A command imports
what it needs when it runs. What a user can get wrong ends in one line on stderr and exit status 2.

vLLM: entrypoints/cli/main.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from folovllm import __version__
from folovllm.entrypoints.cli import bench, chat, demo, generate, info
from folovllm.entrypoints.cli.parser import Parser, one_line

DESCRIPTION = "FoloVLLM: an LLM inference engine to learn from, in the shape of vLLM v1."
INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show 汉字 shows "?" and no traceback.
            stream.reconfigure(errors="replace")
    args = build_parser().parse(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has left; without this, the interpreter would complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, NotImplementedError, OSError) as error:
        if os.environ.get("FOLOVLLM_LOG_LEVEL", "").upper() == "DEBUG":
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def build_parser() -> Parser:
    parser = Parser(prog="folovllm", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"folovllm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (demo, generate, chat, info, bench):
        command.add_parser(commands)
    return parser
