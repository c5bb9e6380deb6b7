"""The program of such a process (template_process.py): it reads templates with their variables, and writes texts.

    8 bytes: how long ── JSON: [template, variables, most characters, seconds] ──▶ render
    render ──▶ 8 bytes: how long ── "t" and the text, "e" and what is wrong, "m": memory ran out, and it ends

A script, started by template_process.py, which ends a render that takes too long. It imports Jinja and nothing of this
package, so that it starts within a tenth of a second and takes a few megabytes. The environment is that of
transformers, without what counts an assistant's tokens.

vLLM: none (transformers' utils/chat_template_utils.py, _compile_jinja_template)
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_MEMORY = 2**29
"""Bytes of address space. The longest text that a template may write, in characters of four bytes, fits twice."""


class _Generation(Extension):
    """{% generation %}…{% endgeneration %} writes what is between."""

    tags = {"generation"}  # noqa: RUF012  as jinja's class has it

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(lineno)

    def _write(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """dict, without the class's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Without names that lead to Python's insides."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as jinja's: `self` may be a name, too
        self, *rest = args
        Namespace.__init__(self)
        for name, value in dict(*rest, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace has no {name!r}: choose a name without an underscore before it")
        super().__setitem__(name, value)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=32)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form), "dict": _Dict(),
        "namespace": _Namespace,
    }  # fmt: skip
    return environment.from_string(source)


def _limit(name: str, soft: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # a system without it has the time limit of the other side
        import resource

        kind = getattr(resource, name)
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


def _answer(request: bytes) -> tuple[bytes, str]:
    try:
        source, variables, most, seconds = json.loads(request)
        _limit("RLIMIT_CPU", math.ceil(sum(os.times()[:2]) + seconds) + 1)  # where the other side is gone
        text = _compiled(source).render(variables)
        return (b"t", text) if len(text) <= most else (b"e", f"it writes more than {most} characters")
    except MemoryError:
        return b"m", f"it takes more than {MAX_MEMORY >> 20} MiB of memory"
    except RecursionError:
        return b"e", "it calls itself too often"
    except Exception as error:  # a program that is not ours may fail in any way
        return b"e", str(error)[:1000]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other side's: what it still wants is rendered
    _limit("RLIMIT_AS", MAX_MEMORY)
    with suppress(AttributeError, OSError):
        os.nice(10)  # the steps of the engine come first
    given, taken, kind = sys.stdin.buffer, sys.stdout.buffer, b""
    while kind != b"m" and (size := given.read(8)):
        kind, text = _answer(given.read(int.from_bytes(size, "big")))
        data = text.encode("utf-8", "surrogatepass")
        taken.write((len(data) + 1).to_bytes(8, "big") + kind + data)
        taken.flush()


if __name__ == "__main__":
    main()
