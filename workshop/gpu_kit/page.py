"""gpu.md: what a person wants to know of a run, on one page. Everything else is in gpu.json and gpu.log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from folovllm.bench.report import format_number
from workshop.gpu_kit.goals import goals_table
from workshop.gpu_kit.parts import LARGE_WEIGHTS
from workshop.gpu_kit.process import Record, Result

TAIL_SHOWN = 12
Column = str | tuple[str, Callable[[dict[str, Any]], Any]]
"""A key of a row, which is the heading too; or a heading, and what it is of a row."""


def _times(row: dict[str, Any]) -> float | None:
    return row["us"] / row["predicted_us"] if row["predicted_us"] else None


def _over(one: str, other: str) -> Callable[[dict[str, Any]], float]:
    return lambda row: float(row[one] / row[other])


COPY: Column = ("of a copy's", _over("gb_per_s", "copy_gb_per_s"))
KERNEL: list[Column] = ["kernel", "us", "predicted_us", ("times predicted", _times), "gb_per_s", COPY]
PROFILE: list[Column] = ["batch", "kernel", "launches", "us", "predicted_us", ("times predicted", _times)]
ATTENTION: list[Column] = ["batch", "context", "blocks", "paged_ms", ("times dense", _over("dense_ms", "paged_ms"))]
DECODE: list[Column] = ["batch", "context", "step_ms", "host_ms", "floor_ms", "share", "output_tokens_per_s"]
ABLATE: list[Column] = [
    "feature", "seconds", "seconds_without", "ratio", "sure", "host_ms", "host_ms_without", "verdict",
]  # fmt: skip
SPECULATION: list[Column] = ["requests", "plain_tokens_per_s", "tokens_per_s", "ratio", "expected", "gain", "drafted"]
# Title, part, columns, and which of its report's notes is below.
TABLES: list[tuple[str, str, list[Column], int | None]] = [
    ("A decode step, kernel by kernel", "profile", PROFILE, None),
    ("The draw", "sampling", KERNEL, None),
    ("Products", "products", KERNEL, None),
    ("Products with codes", "codes", KERNEL, None),
    (
        "Attention, prefill",
        "prefill",
        [*ATTENTION, "paged_tflop_per_s", ("of a product's", _over("paged_tflop_per_s", "matmul_tflop_per_s"))],
        None,
    ),
    ("Decode steps", "decode", DECODE, 0),
    ("Ranks", "ranks", ["what", "batch", "step_ms", "predicted_ms", "same_tokens"], None),
    ("One feature left out, 1 request", "ablate-1", ABLATE, None),
    ("One feature left out, 8 requests", "ablate-8", ABLATE, None),
    *((f"Decode steps of 8B, {kind}", f"8b-{kind}", DECODE, None) for kind in LARGE_WEIGHTS),
    ("Draft tokens", "speculation", SPECULATION, 1),
]
BEFORE: Column = ("measured before these changes", lambda row: row["measured"])
GOALS: list[Column] = ["goal", BEFORE, "wanted", "predicted", "here"]
SERVING = {
    "The first token": "first", "Filters": "filters", "A long decode beside prompts": "beside", "Arrivals": "arrivals"
}  # fmt: skip
WEIGHTS = ("dtype", "requests", "prefill_tokens_per_s", "decode_tokens_per_s", "roofline")
STARTUP = ("imports_s", "build_s", "check_s", "check_again_s", "first_token_s", "ready_s", "later_first_token_ms")
MEMORY = ("asked_gib", "started_gib", "peak_gib", "kv_cache_gib", "graphs_gib")


def page(record: Record) -> str:
    lines = [*_head(record), *_goals(record), *_tests(record)]
    for title, part, columns, note in TABLES:
        if found := record.report(part):
            rows = [row for row in found["rows"] if "us" not in row or row["us"] or row["predicted_us"]]
            rows = [{"copy_gb_per_s": found.get("copy_gb_per_s")} | row for row in rows]
            where = f", {found['context']} tokens each" if "context" in found else ""
            lines += [f"## {title}{where}", "", *_rows(columns, rows)]
            lines += [] if note is None else [found["notes"][note], ""]
    lines += ["Predictions are those of `workshop/bench/gpu_kernels.py`, for this GPU where it knows it.", ""]
    for section in (_serving, _weights, _preset, _startup, _races, _trouble):
        lines += section(record)
    return "\n".join(lines).rstrip() + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Markdown that is aligned, so that it reads well as plain text too."""
    cells = [[cell if isinstance(cell, str) else format_number(cell) for cell in row] for row in rows]
    cells = [[name.replace("_", " ") for name in headings], *cells]
    numeric = [all(not isinstance(row[column], str) for row in rows) for column in range(len(headings))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        each = zip(row, widths, numeric, strict=True)
        padded = [text.rjust(width) if right else text.ljust(width) for text, width, right in each]
        return "| " + " | ".join(padded) + " |"

    rule = "|".join("-" * (w + 1) + (":" if right else "-") for w, right in zip(widths, numeric, strict=True))
    return [line(cells[0]), f"|{rule}|", *map(line, cells[1:]), ""]


def _rows(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = [[row[each] if isinstance(each, str) else each[1](row) for each in columns] for row in rows]
    return table([each if isinstance(each, str) else each[0] for each in columns], cells)


def _head(record: Record) -> list[str]:
    machine = record.report("machine") or {}
    hardware, versions = machine.get("hardware", {}), machine.get("versions", {})
    gpus = ", ".join(hardware.get("gpus", [])) or "no GPU"
    lines = ["# FoloVLLM on a GPU" + (": a rehearsal, whose figures mean nothing" if record.tiny else ""), ""]
    lines.append(f"{gpus}; {hardware.get('cpu', 'unknown CPU')}, {hardware.get('cores', '?')} cores.")
    lines.append(", ".join(f"{name} {found}" for name, found in versions.items() if found) + ".")
    if driver := machine.get("nvidia_smi"):
        lines.append(", ".join(f"{name} {value}" for name, value in driver.items()) + ".")
    lines += [f"{record.date}, {record.seconds:.0f} s of {60 * record.minutes:.0f}, `{record.command}`.", ""]
    rows = [[part["title"], part["status"], part["seconds"], part.get("reason") or ""] for part in record.parts]
    return [*lines, "## Parts", "", *table(["part", "result", "seconds", "why"], rows)]


def _tests(record: Record) -> list[str]:
    found = record.report("tests")
    if not found or not found["counts"]:
        return []
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found["counts"].items()))
    wrong = [f"- `{test}`" for test in found["wrong"]]
    return ["## Tests", "", f"{counts}.", "", *wrong, *([""] if wrong else []),
            *_rows(["test", "seconds"], found["slowest"])]  # fmt: skip


def _goals(record: Record) -> list[str]:
    return ["## Goals on an H200", "", *_rows(GOALS, goals_table(record)),
            "What is measured here counts beside the goals on an H200 alone.", ""]  # fmt: skip


def _serving(record: Record) -> list[str]:
    found, lines = record.report("serving") or {}, list[str]()
    for title, kind in SERVING.items():
        if rows := found.get(kind):
            lines += [f"## {title}", "", *_rows(list(rows[0]), rows)]
    return lines


def _weights(record: Record) -> list[str]:
    reports = [record.report(part["name"]) for part in record.parts if part["name"].startswith("weights-")]
    rows = [row for report in reports if report for row in report["rows"]]
    return ["## Weights of fewer bits", "", *_rows(WEIGHTS, rows)] if rows else []


def _preset(record: Record) -> list[str]:
    base, rows = record.report("preset"), []
    for part in record.parts:
        if not part.get("report") or not part["name"].startswith(("preset", "cache")):
            continue
        for row in part["report"]["rows"]:
            against = row["seconds"] / base["rows"][0]["seconds"] if base else None
            rows.append(
                [part["title"], row["seconds"], row["output_tokens_per_s"], against, row["steps"], row["share"]]
            )
    headings = ["engine", "seconds", "output tokens/s", "seconds against the whole", "steps", "share of the floor"]
    return ["## The published workload", "", *table(headings, rows)] if rows else []


def _startup(record: Record) -> list[str]:
    rows = found["rows"] if (found := record.report("start")) else []
    tables = [line for columns in (STARTUP, MEMORY) for line in _rows(columns, rows)]
    return ["## Start-up and memory", "", *tables] if rows else []


def _races(record: Record) -> list[str]:
    found = record.report("races")
    if not found:
        return []
    said = "compute-sanitizer did not run: results alone were checked."
    if hazards := found["hazards"]:
        said = f"compute-sanitizer: {hazards['errors']} errors, {hazards['warnings']} warnings."
    return ["## Races", "", said, ""]


def _trouble(record: Record) -> list[str]:
    lines = []
    for part in record.parts:
        if tail := part.get("tail"):
            lines += [f"### {part['title']}: {part['status']}", "", "```text", *tail[-TAIL_SHOWN:], "```", ""]
    return ["## The ends of what went wrong", "", *lines] if lines else []


def headline(result: Result) -> str:
    """A line for the screen while it runs."""
    why = f": {result['reason']}" if result.get("reason") else ""
    return f"{result['status']:8}{result['seconds']:6.0f} s  {result['title']}{why}"
