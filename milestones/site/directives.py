"""The grammar of the one-line directives: `::: KIND arguments`, and `{{ bench ... }}` in a sentence.

Both the extension (which renders them) and the parity gate (which compares them) read pages through this
file, so that what the gate calls the same is what the build renders the same.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from milestones.site.errors import DirectiveError

DIRECTIVE = re.compile(r"^(?P<indent>[ \t]*):::[ \t]+(?P<body>\S.*?)[ \t]*$")
INLINE = re.compile(r"\{\{\s*bench\s+(?P<body>[^{}]+?)\s*\}\}")
KINDS = ("code", "bench", "plot", "api", "figure", "files", "map", "way", "exercise", "live")


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive, taken apart: `::: code PATH NAME @m0 nodoc title="..."`."""

    kind: str
    words: tuple[str, ...]
    flags: frozenset[str] = frozenset()
    options: dict[str, str] = field(default_factory=dict)
    milestone: str | None = None

    def identity(self) -> str:
        """What must be equal in both languages: everything but the words that a reader sees."""
        parts = [self.kind, *self.words, *sorted(self.flags)]
        if self.milestone:
            parts.append("@" + self.milestone)
        if "where" in self.options:
            parts.append("where=" + self.options["where"])
        if "columns" in self.options:
            parts.append("columns=" + ",".join(key for key, _ in split_pairs(self.options["columns"])))
        return " ".join(parts)


# kind -> (flags it knows, options it knows, whether it takes a milestone)
_KNOWN: dict[str, tuple[set[str], set[str], bool]] = {
    "code": ({"nodoc", "head"}, {"title"}, True),
    "bench": ({"nocaption"}, {"columns", "where"}, False),
    "plot": (set(), set(), False),
    "api": (set(), {"members"}, False),
    "files": (set(), set(), False),
    "map": (set(), set(), False),
    "figure": (set(), {"caption"}, False),
    "live": (set(), {"caption"}, False),
    "way": (set(), set(), False),
    "exercise": (set(), set(), False),
}


def parse_directive(body: str) -> Directive:
    """Reads the text after `:::`; unknown kinds and options are errors."""
    try:
        tokens = shlex.split(body)
    except ValueError as error:
        raise DirectiveError(f"cannot read {body!r}: {error}") from error
    kind, *rest = tokens
    if kind not in _KNOWN:
        raise DirectiveError(f"unknown directive {kind!r}, known are: {', '.join(KINDS)}")
    flags, options, milestones = _KNOWN[kind]
    words: list[str] = []
    seen_flags: set[str] = set()
    seen_options: dict[str, str] = {}
    milestone: str | None = None
    for token in rest:
        key, equals, value = token.partition("=")
        if token.startswith("@"):
            if not milestones:
                raise DirectiveError(f"{kind} takes no milestone, got {token}")
            milestone = token[1:]
        elif token in flags:
            seen_flags.add(token)
        elif equals:
            if key not in options:
                known = ", ".join(sorted(options)) or "none"
                raise DirectiveError(f"{kind} has no option {key!r}, known are: {known}")
            seen_options[key] = value
        else:
            words.append(token)
    if not words:
        example = "NAME" if kind in ("bench", "plot", "figure", "live") else "PATH NAME"
        raise DirectiveError(f"{kind} needs a name, as in `::: {kind} {example}`")
    return Directive(kind, tuple(words), frozenset(seen_flags), seen_options, milestone)


def split_pairs(text: str) -> list[tuple[str, str]]:
    """`a,b=heading` -> [("a", "a"), ("b", "heading")]."""
    pairs = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = item.partition("=")
        pairs.append((key.strip(), value.strip() if equals else key.strip()))
    return pairs


def split_where(text: str) -> dict[str, str]:
    """`batch=1,dtype=bfloat16` -> {"batch": "1", "dtype": "bfloat16"}."""
    where = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise DirectiveError(f"where must be COLUMN=VALUE[,COLUMN=VALUE], got {item!r}")
        where[key.strip()] = value.strip()
    return where


class FenceTracker:
    """Says of each line in turn whether it belongs to a fenced code block."""

    _FENCE = re.compile(r"^[ \t]*(?P<marks>`{3,}|~{3,})(?P<info>.*)$")

    def __init__(self) -> None:
        self.marks = ""
        self.info = ""

    def feed(self, line: str) -> bool:
        """True for the fence's own lines and for everything between them."""
        match = self._FENCE.match(line)
        if self.marks:
            closing = match is not None and not match["info"].strip()
            if closing and match is not None and match["marks"].startswith(self.marks):
                self.marks = ""
            return True
        if match is None or "`" in match["info"]:
            return False
        self.marks, self.info = match["marks"], match["info"].strip()
        return True
