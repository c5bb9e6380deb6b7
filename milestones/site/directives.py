"""What a page names: a mark, then what stands for it, then an end. The marks are comments, which no renderer shows.

    <!-- code folovllm/request.py Sequence.fork @m0 nodoc -->
    <!-- bench NAME columns="batch,ratio:.1f=times" where="dtype=bfloat16" -->
    <!-- api folovllm/sampling_params.py SamplingParams -->
    <!-- exercise m3/01-block-pool -->      <!-- way m3 -->      <!-- live m3/running -->
    ... what `make pages` writes
    <!-- end -->

    It decodes <!-- = NAME ratio:.2f where batch=1 -->1.50<!-- end --> times as fast.

Whatever reads a page as its author wrote it (the gates, the counts, the snippets) takes `written`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from milestones.site.errors import DirectiveError

KINDS = ("code", "bench", "api", "files", "map", "way", "exercise", "live")
MARK = re.compile(rf"<!-- (?P<body>(?:{'|'.join(KINDS)})\b.*?) -->$")
END = "<!-- end -->"
INLINE = re.compile(rf"<!-- = (?P<body>[^<>]+?) -->(?P<shown>[^<]*){END}")
DRAWING = re.compile(r"!\[(?P<title>[^\]]*)\]\((?P<file>(?:\.\./)+figures/[^)\s]+\.svg)\)")
"""An image of docs/figures; `make pages` writes its title."""
OPTIONAL = {"en": "*Optional.*", "zh": "*选读。*"}
"""Under the title of a page that is not on the way; `make pages` writes the page's minutes into it."""
_MINUTES = re.compile(r"(?<=^\*Optional), about \d+ minutes(?=\.\*$)|(?<=^\*选读)，约 \d+ 分钟(?=。\*$)")


@dataclass(frozen=True, slots=True)
class Directive:
    """One mark, taken apart: `code PATH NAME @m0 nodoc title="..."`."""

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
    "api": (set(), {"members"}, False),
    "files": (set(), set(), False),
    "map": (set(), set(), False),
    "live": (set(), set(), False),
    "way": (set(), set(), False),
    "exercise": (set(), set(), False),
}


def parse_directive(body: str) -> Directive:
    """Reads the text of a mark; unknown kinds and options are errors."""
    try:
        tokens = shlex.split(body)
    except ValueError as error:
        raise DirectiveError(f"cannot read {body!r}: {error}") from error
    kind, *rest = tokens
    if kind not in _KNOWN:
        raise DirectiveError(f"unknown mark {kind!r}, known are: {', '.join(KINDS)}")
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
        example = "PATH NAME" if kind in ("code", "api") else "NAME"
        raise DirectiveError(f"{kind} needs a name, as in <!-- {kind} {example} -->")
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


def written(page: str) -> list[str]:
    """The lines of a page that its author wrote: without what stands for the marks, their numbers stay."""
    out: list[str] = []
    fences, inside = FenceTracker(), False
    for line in page.splitlines():
        if inside:
            inside = line != END
            out.append("")
        elif fences.feed(line):
            out.append(line)
        else:
            inside = MARK.match(line) is not None
            line = INLINE.sub(r"<!-- = \g<body> -->", _MINUTES.sub("", line))
            out.append(DRAWING.sub(r"![](\g<file>)", line))
    return out


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
