"""One kind of error, in one line, for all that can go wrong inside the libraries that read a model.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from folovllm.errors import ModelLoadError


@contextmanager
def readable_errors(name: str, what: str = "model", hint: str = "") -> Iterator[None]:
    """transformers' own errors run over many lines and rarely name the model: keep one line, and name it.

    Every Exception is caught. A damaged file makes these libraries stumble wherever its values are used first, with
    a TypeError or an AttributeError as likely as with a ValueError. The first error stays the cause of ours.
    """
    try:
        yield
    except ModelLoadError:
        raise  # it says already what is wrong with which file
    except Exception as error:
        reason = one_line(error)
        if hint:
            reason = f"{reason.rstrip('.')}; {hint}"
        raise ModelLoadError(f"{what} {name!r} cannot be loaded: {reason}") from error


def one_line(error: Exception) -> str:
    """The first line of an error's text. Lines that end in a colon only announce the next one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].endswith(":"):
        lines[:2] = [f"{lines[0]} {lines[1]}"]
    if not lines or isinstance(error, LookupError):  # the text of a KeyError is the key alone
        lines[:1] = [": ".join([type(error).__name__, *lines[:1]])]
    return lines[0]
