"""The gate for the Chinese of the code boxes, and the command that keeps its files.

    python -m milestones.site comments             what the boxes of the core path lack, and entries that no box shows
    python -m milestones.site comments --update    puts it into the files, to be filled in, and shows it
    python -m milestones.site comments --accept    the Chinese shown for changed English is right: takes out every `was`

An update gives a new text an empty `zh`. Where the English of an entry has changed it keeps the Chinese, and as `was`
the English that this belongs to: make the Chinese say what the new one says, and take the line `was` out.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

from milestones.site import comments
from milestones.site.render import shown_code
from milestones.site.scan import scan
from milestones.site.source import MODULE_DOC, ROOT
from milestones.site.way import core_path

CLOSE = 0.5
"""Two texts with less in common are another text, and not a changed one."""
Entry = dict[str, str]


@dataclass
class Shown:
    """A text that a box shows."""

    said: str
    page: str
    box: str  # "folovllm/request.py Sequence.fork @m0"


@dataclass
class State:
    """What the pages show beside what the files have, by the key of the English."""

    core: dict[str, dict[str, Shown]] = field(default_factory=lambda: defaultdict(dict))  # by milestone
    optional: set[str] = field(default_factory=set)
    entries: dict[str, Entry] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)  # key -> the file that has its entry

    def of_core(self) -> dict[str, Shown]:
        return {key: shown for texts in self.core.values() for key, shown in texts.items()}


def look(root: Path = ROOT) -> State:
    """Reads all pages in Chinese, and all entries."""
    state = State()
    core = core_path(lambda path: (root / path).read_text(encoding="utf-8"))
    known: set[str] = set()
    for name, pages in core.items():
        for page in [f"{name}/index.md", *pages]:
            for key, shown in _texts(root / "docs/zh" / page, page):
                if key not in known:
                    state.core[name][key] = shown
                    known.add(key)
        file = root / comments.FOLDER / f"{name}.toml"
        for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("text", []) if file.is_file() else []:
            key = comments.key(entry["en"])
            state.entries[key], state.homes[key] = entry, name
    for path in (root / "docs/zh").rglob("*.md"):
        state.optional |= {key for key, _ in _texts(path, path.name)} - known
    return state


def _texts(path: Path, page: str) -> Iterator[tuple[str, Shown]]:
    for _, body, directive in scan(path).directives if path.is_file() else ():
        if directive is None or directive.kind != "code":
            continue
        code = shown_code(directive)
        is_doc = directive.words[1:] == (MODULE_DOC,)
        for said in [code] if is_doc else [text.said for text in comments.texts(code) if text.is_prose]:
            yield comments.key(said), Shown(said, page, body.removeprefix("code ").partition(" title=")[0])


def problems(state: State) -> list[str]:
    found = []
    for key, shown in state.of_core().items():
        entry = state.entries.get(key)
        if entry is None or not comments.is_done(entry):
            what = "no Chinese for" if entry is None or "was" not in entry else "Chinese of an older English for"
            found.append(f"docs/zh/{shown.page}: {shown.box}: {what} {_short(key)}")
    shown_keys = state.of_core().keys() | state.optional
    for key in state.entries.keys() - shown_keys:
        found.append(f"{comments.FOLDER}/{state.homes[key]}.toml: no box shows {_short(key)}")
    return found


def _short(key: str) -> str:
    return repr(key if len(key) <= 80 else key[:77] + "...")


def update(state: State, root: Path = ROOT, *, accept: bool = False) -> list[str]:
    """Writes the files anew, in the order of the pages; returns the entries that wait for their Chinese."""
    core = state.of_core()
    left = {key: entry for key, entry in state.entries.items() if key not in core.keys() | state.optional}
    waiting: list[str] = []
    (root / comments.FOLDER).mkdir(exist_ok=True)
    for name, texts in state.core.items():
        parts: list[str] = []
        box = ""
        for key, shown in texts.items():
            entry = state.entries.get(key) or _closest(shown.said, left)
            if shown.box != box:
                parts.append(f"# {shown.page}: {shown.box}")
                box = shown.box
            if accept and key in state.entries and entry["zh"].strip():  # it has been shown before
                entry = {"zh": entry["zh"]}
            parts.append(_toml({**entry, "en": shown.said}))
            if not comments.is_done(entry):
                waiting.append(parts[-1].replace("[[text]]", f"{comments.FOLDER}/{name}.toml"))
        extra = [k for k, home in state.homes.items() if home == name and k in state.optional]
        parts += ["# optional pages"] * bool(extra) + [_toml(state.entries[key]) for key in extra]
        (root / comments.FOLDER / f"{name}.toml").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return waiting


def _closest(said: str, left: dict[str, Entry]) -> Entry:
    """The entry of the English that `said` has become, taken from `left`; an empty one where there is none."""
    new = comments.key(said).split()
    best, most = None, CLOSE
    for key in left:
        ratio = SequenceMatcher(None, key.split(), new, autojunk=False).ratio()
        if ratio > most:
            best, most = key, ratio
    if best is None:
        return {"zh": ""}
    entry = left.pop(best)
    return {"was": entry.get("was", entry["en"]), "zh": entry["zh"]}


def _toml(entry: Entry) -> str:
    lines = [f"{name} = {_string(entry[name])}" for name in ("was", "en", "zh") if name in entry]
    return "\n".join(["[[text]]", *lines])


def _string(text: str) -> str:
    """A TOML string as it is read, without escapes."""
    text = text.strip("\n")
    if "\n" not in text and not re.search(r"['\x00-\x1f]", text):
        return f"'{text}'"
    if "'''" in text:
        raise ValueError(f"a text must not have three apostrophes in a row, got {text!r}")
    return f"'''\n{text}\n'''"
