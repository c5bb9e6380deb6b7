"""Benchmark tables from the JSON that `folovllm bench ... --json` writes: no figure is typed by hand.

A file is docs/benchmarks/data/NAME.json:
{"name", "command", "versions": {...}, "hardware": {...} or text, "date",
 "columns": [...], "rows": [{...}], "notes"?, "other_load"?: {...} or null}
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from milestones.site.directives import split_pairs, split_where
from milestones.site.errors import DirectiveError
from milestones.site.source import ROOT

DATA = ROOT / "docs" / "benchmarks" / "data"
CHINESE: dict[str, str] = tomllib.loads((ROOT / "docs" / "notes.zh.toml").read_text(encoding="utf-8"))
_REQUIRED = ("name", "command", "versions", "hardware", "date", "columns", "rows")
_LABELS = {
    "en": {
        "none": "No measurement is stored in this repository.",
        "same": "In every row",
        "command": "Command",
        "hardware": "Machine",
        "versions": "Versions",
        "date": "Date",
        "before": "Measured before the changes that *A faster GPU engine* names",
        "busy": "Other programs used {used:.1f} of {cores} cores ({share:.0%}) meanwhile",
        "sep": ", ",
    },
    "zh": {
        "none": "仓库里还没有存下测量结果。",
        "same": "各行相同",
        "command": "命令",
        "hardware": "机器",
        "versions": "版本",
        "date": "日期",
        "before": "测于《更快的 GPU 引擎》所列各项改动之前",
        "busy": "同时其他程序占用了 {cores} 个核里的 {used:.1f} 个（{share:.0%}）",
        "sep": "，",
    },
}
Row = dict[str, Any]


def load(name: str, folder: Path | None = None) -> dict[str, Any]:
    """The measured data by name; what is missing in it is an error."""
    folder = folder or DATA
    path = folder / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.json"))) or "none"
        raise DirectiveError(f"no benchmark {name!r}: {path.name} is not in {folder.name}/ (there are: {known})")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DirectiveError(f"{path.name} is not valid JSON: {error}") from error
    missing = [key for key in _REQUIRED if key not in data]
    if missing:
        raise DirectiveError(f"{path.name} lacks {', '.join(missing)}")
    return data


def format_value(value: Any, spec: str = "") -> str:
    """A cell's text: about four significant digits, thousands grouped, or what a format spec says."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, int | float):
        if spec or isinstance(value, int):
            return format(value, spec or ",")
        size = abs(value)
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
        return f"{value:,.{digits}f}"
    return str(value)


def said(text: str, lang: str) -> str:
    """A cell or a note in a page's language; what docs/notes.zh.toml does not have stays English."""
    for english, chinese in CHINESE.items() if lang == "zh" else ():
        text = re.sub(english, chinese, text)
    return text


def select(data: dict[str, Any], where: str) -> list[Row]:
    """The rows whose columns print as `where` says."""
    wanted = split_where(where)
    for key in wanted:
        _check_column(data, key)
    return [row for row in data["rows"] if all(str(row.get(k)).lower() == v.lower() for k, v in wanted.items())]


def _check_column(data: dict[str, Any], key: str) -> None:
    if key not in data["columns"] and not any(key in row for row in data["rows"]):
        known = ", ".join(map(str, data["columns"]))
        raise DirectiveError(f"benchmark {data['name']!r} has no column {key!r}, it has: {known}")


def table(data: dict[str, Any], *, columns: str = "", where: str = "", caption: bool = True, lang: str = "en") -> str:
    """A Markdown table of the chosen columns and rows, and under it how it was measured.

    Without a choice of columns, those that say the same in every row go into the caption: the eye is for what differs.
    """
    rows = select(data, where) if where else data["rows"]
    if not rows:
        raise DirectiveError(f"benchmark {data['name']!r} has no row where {where}")
    alike = [key for key in map(str, data["columns"]) if all(row.get(key) == rows[0].get(key) for row in rows)]
    shared = [] if columns or len(rows) == 1 else alike
    picked = split_pairs(columns) or [(key, key) for key in map(str, data["columns"]) if key not in shared]
    keys = []
    for key, heading in picked:
        column, _, spec = key.partition(":")
        _check_column(data, column)
        keys.append((column, spec, _heading(column) if heading == key else heading))
    numeric = [all(isinstance(r.get(c), int | float | None) for r in rows) for c, _, _ in keys]
    lines = [
        "| " + " | ".join(_cell(heading) for _, _, heading in keys) + " |",
        "|" + "|".join("--:" if right else "---" for right in numeric) + "|",
    ]
    lines += ["| " + " | ".join(_cell(format_value(row.get(c), s), lang) for c, s, _ in keys) + " |" for row in rows]
    if caption:
        same = [f"{_heading(key)} {format_value(rows[0][key])}" for key in shared if rows[0][key] is not None]
        lines += ["", *_caption(data, lang, same)]
    return "\n".join(lines)


def all_tables(lang: str = "en", folder: Path | None = None) -> str:
    """Every stored measurement, by name: what the benchmarks page shows."""
    names = sorted(path.stem for path in (folder or DATA).glob("*.json"))
    if not names:
        return _LABELS[lang]["none"]
    found = [load(name, folder) for name in names]
    return "\n\n".join(f"**{data.get('title', data['name'])}**\n\n{table(data, lang=lang)}" for data in found)


# How a column's name ends -> how its heading does; the longer endings first.
_UNITS = {"_tokens_per_s": " tokens/s", "_gb_per_s": " GB/s", "_ms": " ms", "_gb": " GB", "_s": " s"}


def _heading(key: str) -> str:
    for ending, unit in _UNITS.items():
        if key.endswith(ending) and key != ending[1:]:
            return key.removesuffix(ending).replace("_", " ") + unit
    return key.replace("_", " ")


def _cell(text: str, lang: str = "en") -> str:
    return said(text, lang).replace("|", "\\|").replace("\n", " ")


def _caption(data: dict[str, Any], lang: str, same: list[str]) -> list[str]:
    labels = _LABELS[lang]
    parts = [f"{labels['same']}: {labels['sep'].join(same)}"] if same else []
    parts.append(f"{labels['command']}: `{command_today(data['command'])}`")
    parts += [f"{labels[key]}: {_inline(data[key], labels['sep'])}" for key in ("hardware", "versions", "date")]
    if "gpus" in data["hardware"] and data["versions"].get("folovllm") == "0.1.0":  # until a GPU has run a later one
        parts.append(labels["before"])
    if notes := data.get("notes"):
        parts.append(said(_inline(notes, " "), lang).replace("。 ", "。"))
    if (load := data.get("other_load")) and load["is_busy"]:
        used = load["cpu_seconds"] / load["wall_seconds"]
        parts.append(labels["busy"].format(used=used, cores=load["cores"], share=load["share"]))
    return ["<sub>" + "<br>\n".join(parts) + "</sub>"]


MOVED = ("decode", "compare", "serve-load")


def command_today(command: str) -> str:
    """What makes this measurement now: peers, and some kinds, were in the package's bench once."""
    moved = "--peer" in command or command.startswith(tuple(f"folovllm bench {kind}" for kind in MOVED))
    return command.replace("folovllm bench", "python -m workshop.bench") if moved else command


def _inline(value: Any, separator: str) -> str:
    if isinstance(value, dict):
        return separator.join(f"{key} {_inline(item, separator)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return separator.join(_inline(item, separator) for item in value)
    return str(value)


_INLINE = re.compile(r"(?P<name>\S+) (?P<column>[^\s:]+)(?::(?P<spec>\S+))?(?: where (?P<where>.+))?")


def figure(body: str, folder: Path | None = None) -> str:
    """One cell for a sentence: `NAME COLUMN[:SPEC] [where K=V,...]`; exactly one row must match."""
    match = _INLINE.fullmatch(body)
    if match is None:
        raise DirectiveError(f"cannot read <!-- = {body} -->: write NAME COLUMN[:.1f] [where K=V]")
    data = load(match["name"], folder)
    _check_column(data, match["column"])
    rows = select(data, match["where"] or "")
    if len(rows) != 1:
        raise DirectiveError(f"<!-- = {body} --> must match one row, it matches {len(rows)}")
    return format_value(rows[0].get(match["column"]), match["spec"] or "")
