"""Checks on user-given values: one function per kind of value, all raising the same kind of message.

Every message starts with the field's name and says what is allowed and what was given. Two traps that a
bare comparison walks into are closed here once: NaN compares false with everything, so `x < 0` lets it
through, and `bool` is a subclass of `int`, so `n=True` would pass for `n=1`.

vLLM: none
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

MAX_SEED = 2**63 - 1  # that every generator takes
FLOAT32_MAX = 3.4e38


class FollowingInt(int):
    """A field's value that was not given and is another's: dataclasses.replace() leaves it out again."""


class FollowingStr(str): ...


def describe(value: object) -> str:
    """A value as an error message shows it: short, and with its type where the type is the mistake."""
    try:
        text = repr(value)
    except RecursionError:  # lists in lists in lists, from a file or a client
        text = f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= 80 else text[:77] + "..."


def wrong(name: str, must: str, value: object, way_out: str = "") -> ValueError:
    """The one shape of a message: `name must <must>, got <value>[; way out]`."""
    return ValueError(f"{name} must {must}, got {describe(value)}" + (f"; {way_out}" if way_out else ""))


def check_int(name: str, value: object, minimum: int | None = None, must: str = "", way_out: str = "") -> None:
    """An int (never a bool) of at least `minimum`. `must` replaces the default wording of the limit."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {describe(value)} ({type(value).__name__})")
    if minimum is not None and value < minimum:
        default = {0: "be non-negative", 1: "be positive"}.get(minimum, f"be at least {minimum}")
        raise wrong(name, must or default, value, way_out)


def check_float(name: str, value: object) -> float:
    """A number that float32 can hold (int or float, never a bool), returned for the range check that follows."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {describe(value)} ({type(value).__name__})")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")
    if abs(value) > FLOAT32_MAX:  # it would become infinite among the logits, and inf - inf is NaN
        raise wrong(name, f"be at most {FLOAT32_MAX} in size, what float32 can hold", value)
    return value


def check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {describe(value)} ({type(value).__name__})")


def check_utf8(name: str, text: str) -> None:
    """Tokenizers take no other text. A lone surrogate is half of a character, or a byte that is no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"{text[error.start]!r} at place {error.start}"
        raise ValueError(f"{name} must be text that UTF-8 can hold, got {found} of {describe(text)}") from None


def check_str(name: str, value: object) -> None:
    """A string with something in it."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {describe(value)} ({type(value).__name__})")
    if not value.strip():
        raise ValueError(f"{name} must not be empty, got {value!r}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """One of a closed set of strings; a near miss is named."""
    valid = list(choices)
    if not isinstance(value, str) or value not in valid:
        hint = did_you_mean(value, valid) if isinstance(value, str) else ""
        raise wrong(name, "be one of " + ", ".join(repr(v) for v in valid), value, hint)


def check_token_ids(name: str, value: object, allow_empty: bool = True) -> None:
    """A list of token ids. Whether an id is inside the vocabulary only the engine can tell."""
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of token ids, got {describe(value)} ({type(value).__name__})")
    if not value and not allow_empty:
        raise ValueError(f"{name} must not be empty, got []")
    for position, token_id in enumerate(value):
        check_int(f"{name}[{position}]", token_id, minimum=0)


def nearest_name(name: str, valid: Iterable[str]) -> str | None:
    """The closest valid name, or None when none is close enough, word by word: --ssl-keyfile is no --salt-by-key."""
    words = [(re.findall("[^-_]+", each.lower()), each) for each in (name, *valid)]
    (typed, _), *known = words

    def likeness(others: list[str]) -> float:
        if len(typed) != len(others):
            return float("".join(typed) == "".join(others))  # blocksize
        pairs = zip(typed, others, strict=True)
        return min((difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs), default=0)

    alike, nearest = max(((likeness(others), each) for others, each in known), default=(0, None))
    return nearest if alike > 0.66 else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'block_size'?`, or an empty string."""
    nearest = nearest_name(name, valid)
    return f"did you mean {nearest!r}?" if nearest else ""
