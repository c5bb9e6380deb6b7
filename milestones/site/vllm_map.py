"""The map from files here to files of vLLM, made from the heads of the files themselves.

    folovllm/core/block_pool.py   \"\"\"...  vLLM: v1/core/block_pool.py, v1/core/kv_cache_utils.py (...)\"\"\"
    docs/map.toml                 ["core/block_pool.py"]  en = "what vLLM has beyond"  zh = "..."
    a page                        ::: map core

A head says `vLLM: PATHS`, in its module docstring or first comment, or `vLLM: none`. Paths are relative to vLLM's
`vllm/` folder. A name without a folder lies beside the path before it, and what was V0's is said to be.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from milestones.chain import comes_after
from milestones.site import source
from milestones.site.errors import DirectiveError
from milestones.site.vllm_files import VllmFiles
from milestones.spec import matches, parse_milestone

NOTES = "docs/map.toml"
_HEAD = re.compile(r"\bvLLM: (.*?)(?:\n\s*\n|\Z)", re.DOTALL)
_PATH = re.compile(
    r"(?P<v0>\b[Vv]0's )?(?<![\w/.])(?P<path>(?:[\w-]+/)*[\w-]+\.(?:py|cu|cpp|hpp|cmake)\b|(?:[\w-]+/)+(?![\w.]))"
)
_WORDS = {
    "en": ("here", "since", "after M{last}", "vLLM", "what vLLM has beyond", "V0's"),
    "zh": ("这里", "始于", "M{last} 之后", "vLLM", "vLLM 还有什么", "V0 的"),
}


@dataclass(frozen=True, slots=True)
class Counterpart:
    """One path that a head names."""

    path: str
    v0: bool = False  # it left vLLM with V0, so no wheel of today has it


def head_of(path: Path) -> str | None:
    """What follows `vLLM:` in the file's head, to the end of that paragraph; None where there is no such line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        head = ast.get_docstring(source.tree_of(text)) or ""
    else:
        comment = re.match(r"(?://.*\n)*", text)
        head = re.sub(r"(?m)^// ?", "", comment[0] if comment else "")
    found = _HEAD.search(head)
    return " ".join(found[1].split()) if found else None


def counterparts(head: str, files: VllmFiles) -> list[Counterpart]:
    """The paths that a head names, in its order; none for a head that begins with "none"."""
    if head.startswith("none"):
        return []
    found: list[Counterpart] = []
    for match in _PATH.finditer(head):
        path = match["path"].removeprefix("vllm/")
        if "/" not in path and found and not match["v0"] and path not in files.files:
            path = found[-1].path.rpartition("/")[0] + "/" + path
        found.append(Counterpart(path, bool(match["v0"])))
    return found


def mapped_files() -> list[str]:
    """Every file of the package, relative to it; without each `__init__.py` that only says what its folder is."""
    package = source.ROOT / "folovllm"
    sources = [p for s in ("*.py", "*.cpp", "*.h") for p in package.rglob(s)]
    return sorted(p.relative_to(package).as_posix() for p in sources if not _only_says(p))


def _only_says(path: Path) -> bool:
    return path.name == "__init__.py" and len(source.tree_of(path.read_text(encoding="utf-8")).body) <= 1


@cache
def _milestones() -> list[tuple[int, list[str]]]:
    specs = sorted((source.ROOT / "milestones").glob("m[0-9]*/milestone.toml"), key=lambda p: int(p.parent.name[1:]))
    numbers = [int(p.parent.name[1:]) for p in specs]
    read = [parse_milestone(k, p.read_text(encoding="utf-8")) for k, p in zip(numbers, specs, strict=True)]
    return [(m.number, m.patterns) for m in read]


AFTER_ALL = 99
"""In place of a milestone's number: the file stands on top of the last one (AFTER in chain.py)."""


def arrival(path: str) -> int:
    """The milestone that brings `path`; an exact path beats a pattern."""
    exact = [k for k, patterns in _milestones() if path in patterns]
    if exact:
        return exact[0]
    if comes_after(path):
        return AFTER_ALL
    return next(k for k, patterns in _milestones() if any(matches(p, path) for p in patterns))


def notes() -> dict[str, dict[str, str]]:
    """File -> what vLLM has beyond, in each language."""
    return tomllib.loads((source.ROOT / NOTES).read_text(encoding="utf-8"))


def in_group(words: tuple[str, ...]) -> list[str]:
    """The files that a directive's words name: a file, or a folder with all below it."""
    files = mapped_files()
    named = [f for w in words for f in files if f == w or f.startswith(w.rstrip("/") + "/")]
    if missing := [w for w in words if not any(f == w or f.startswith(w.rstrip("/") + "/") for f in files)]:
        raise DirectiveError(f"folovllm/ has no {missing[0]}")
    return sorted(named, key=lambda f: (arrival(f"folovllm/{f}"), f))


def render(words: tuple[str, ...], files: VllmFiles, lang: str) -> str:
    """The table of one group: a row for each file."""
    here, since, on_top, there, beyond, v0 = _WORDS[lang]
    lines = [f"| {here} | {since} | {there} | {beyond} |", "|---|---|---|---|"]
    texts = notes()
    for name in in_group(words):
        head = head_of(source.ROOT / "folovllm" / name)
        if head is None:
            raise DirectiveError(f"folovllm/{name} has no `vLLM:` line in its head")
        paths = [f"{v0} {code_path(c.path)}" if c.v0 else code_path(c.path) for c in counterparts(head, files)]
        number = arrival(f"folovllm/{name}")
        after = on_top.format(last=_milestones()[-1][0])
        brought = after if number == AFTER_ALL else f"[M{number}](m{number}/index.md)"
        cells = [code_path(name), brought, "<br>".join(paths) or "—"]
        lines.append(f"| {' | '.join(cells)} | {texts.get(name, {}).get(lang, '')} |")
    return "\n".join(lines)


def code_path(path: str) -> str:
    """A path that a narrow column breaks behind a slash and nowhere else."""
    shown = path.replace("/", "/<wbr>").replace("__", "&#95;&#95;")  # two underscores would make Markdown print bold
    return f'<code class="path">{shown}</code>'
