"""gpu.md: what a person wants to know of a run, on one page. Everything else is in gpu.json and gpu.log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from folovllm.bench.report import format_number
from workshop.gpu_kit.record import Record, Result

Table = list[list[str]]
TAIL_SHOWN = 12


def page(record: Record) -> str:
    lines = [*_head(record), *_overview(record)]
    for section in (_tests, _kernels, _attention, _decode, _weights, _speculation, _preset, _startup, _races, _trouble):
        lines += section(record)
    return "\n".join(lines).rstrip() + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Markdown that is aligned, so that it reads well as plain text too."""
    cells = [
        list(headings),
        *([cell if isinstance(cell, str) else format_number(cell) for cell in row] for row in rows),
    ]
    numeric = [all(not isinstance(row[column], str) for row in rows) for column in range(len(headings))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        return "| " + " | ".join(padded) + " |"

    rule = (
        "|" + "|".join("-" * (w + 1) + (":" if right else "-") for w, right in zip(widths, numeric, strict=True)) + "|"
    )
    return [line(cells[0]), rule, *map(line, cells[1:]), ""]


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
    return lines


def _overview(record: Record) -> list[str]:
    rows = [[part["title"], part["status"], part["seconds"], part.get("reason") or ""] for part in record.parts]
    return ["## Parts", "", *table(["part", "result", "seconds", "why"], rows)]


def _tests(record: Record) -> list[str]:
    found = record.report("tests")
    if not found or not found["counts"]:
        return []
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found["counts"].items()))
    lines = ["## Tests", "", f"{counts}.", ""]
    for test in found["wrong"]:
        lines += [f"- `{test['test']}`: {test['text'][-1] if test['text'] else test['outcome']}"]
    lines += [""] if found["wrong"] else []
    slowest = [[test["test"], test["seconds"]] for test in found["slowest"][:5]]
    return [*lines, *(table(["slowest", "seconds"], slowest) if slowest else [])]


def _kernels(record: Record) -> list[str]:
    """Predicted beside measured, microseconds of each kernel: of whole steps, then one by one."""
    lines: list[str] = []
    if found := record.report("profile"):
        rows = [
            [row["batch"], row["kernel"], row["launches"], row["us"], row["predicted_us"], _times(row)]
            for row in found["rows"]
            if row["us"] or row["predicted_us"]
        ]
        headings = ["sequences", "kernel", "launches", "us a step", "predicted us", "times predicted"]
        lines += [f"## A decode step, kernel by kernel, {found['context']} tokens each", "", *table(headings, rows)]
    titles = {"sampling": "The draw", "products": "Products", "codes": "Products with codes",
              "tiles": "Decode with other tiles"}  # fmt: skip
    for name, title in titles.items():
        if found := record.report(name):
            rows = [
                [row["kernel"], row["us"], row["predicted_us"], _times(row), row["gb_per_s"],
                 row["gb_per_s"] / found["copy_gb_per_s"]]
                for row in found["rows"]
            ]  # fmt: skip
            headings = ["kernel", "us", "predicted us", "times predicted", "GB/s", "of a copy's"]
            lines += [f"## {title}", "", *table(headings, rows)]
    if lines:
        lines += ["Predictions are those of `workshop/bench/time_line.py`, for this GPU where it knows it.", ""]
    return lines


def _times(row: dict[str, Any]) -> float | None:
    return row["us"] / row["predicted_us"] if row["predicted_us"] else None


def _attention(record: Record) -> list[str]:
    lines = []
    if found := record.report("attention"):
        rows = [
            [row["batch"], row["context"], row["blocks"], row["paged_ms"] * 1e3, row["paged_gb_per_s"],
             row["paged_gb_per_s"] / row["copy_gb_per_s"], row["dense_ms"] / row["paged_ms"]]
            for row in found["rows"]
        ]  # fmt: skip
        headings = ["sequences", "context", "blocks", "us a layer", "GB/s", "of a copy's", "times dense"]
        lines += ["## Attention, decode", "", *table(headings, rows)]
    if found := record.report("prefill"):
        rows = [
            [row["batch"], row["context"], row["blocks"], row["paged_ms"], row["paged_tflop_per_s"],
             row["paged_tflop_per_s"] / row["matmul_tflop_per_s"], row["dense_ms"] / row["paged_ms"]]
            for row in found["rows"]
        ]  # fmt: skip
        headings = ["sequences", "context", "blocks", "ms a layer", "TFLOP/s", "of a product's", "times dense"]
        lines += ["## Attention, prefill", "", *table(headings, rows)]
    return lines


def _decode(record: Record) -> list[str]:
    found = record.report("decode")
    if not found:
        return []
    names = ("batch", "context", "step_ms", "floor_ms", "share", "output_tokens_per_s")
    headings = ["sequences", "context", "step ms", "floor ms", "share", "tokens/s"]
    return ["## Decode steps", "", *table(headings, [[row[name] for name in names] for row in found["rows"]]),
            found["notes"][0], ""]  # fmt: skip


def _weights(record: Record) -> list[str]:
    reports = [record.report(part["name"]) for part in record.parts if part["name"].startswith("weights-")]
    rows = [row for report in reports if report for row in report["rows"]]
    names = ("dtype", "requests", "prefill_tokens_per_s", "decode_tokens_per_s", "roofline")
    headings = ["weights", "requests", "prefill tokens/s", "decode tokens/s", "share of the weights' floor"]
    lines = table(headings, [[row[name] for name in names] for row in rows])
    return ["## Weights of fewer bits", "", *lines] if rows else []


def _speculation(record: Record) -> list[str]:
    found = record.report("speculation")
    if not found:
        return []
    names = ("requests", "plain_tokens_per_s", "tokens_per_s", "ratio", "expected", "gain", "drafted")
    lines = table([name.replace("_", " ") for name in names], [[row[name] for name in names] for row in found["rows"]])
    return [f"## Guesses, {found['rows'][0]['method']}", "", *lines, found["notes"][1], ""]


def _preset(record: Record) -> list[str]:
    base, rows = record.report("preset"), []
    for part in record.parts:
        if not part.get("report") or not part["name"].startswith(("preset", "beside", "with")):
            continue
        for row in part["report"]["rows"]:
            name = row["engine"] if part["name"] == "beside" else part["title"]
            against = row["seconds"] / base["rows"][0]["seconds"] if base else None
            rows.append([name, row["seconds"], row["output_tokens_per_s"], against, row["steps"], row["share"]])
    if not rows:
        return []
    headings = ["engine", "seconds", "output tokens/s", "seconds against the whole", "steps", "share of the floor"]
    return ["## The published workload", "", *table(headings, rows)]


def _startup(record: Record) -> list[str]:
    rows = []
    for name in ("start-cold", "start-warm"):
        if found := record.report(name):
            row = found["rows"][0]
            keys = (
                "imports_s",
                "build_s",
                "check_s",
                "check_again_s",
                "first_token_s",
                "ready_s",
                "later_first_token_ms",
            )
            memory = ("asked_gib", "started_gib", "peak_gib", "kv_cache_gib", "graphs_gib")
            rows.append((name.removeprefix("start-"), [row[key] for key in keys], [row[key] for key in memory]))
    if not rows:
        return []
    seconds = [
        "compiled before",
        "imports s",
        "build s",
        "of it kernel check s",
        "check once more s",
        "first token s",
        "ready s",
        "a later first token ms",
    ]
    gib = ["compiled before", "asked GiB", "in use GiB", "at most GiB", "KV cache GiB", "graphs GiB"]
    said = {"cold": "no", "warm": "yes"}
    return [
        "## Start-up and memory",
        "",
        *table(seconds, [[said[name], *times] for name, times, _ in rows]),
        *table(gib, [[said[name], *memory] for name, _, memory in rows]),
    ]


def _races(record: Record) -> list[str]:
    found = record.report("races")
    if not found:
        return []
    hazards = found["hazards"]
    said = (
        f"compute-sanitizer: {hazards['errors']} errors, {hazards['warnings']} warnings."
        if hazards
        else "compute-sanitizer did not run: results alone were checked."
    )
    rows = [[name, f"{error:.1e}"] for name, error in found["errors"].items()]
    return ["## Races", "", said, "", *table(["kernels", "largest error against float64"], rows)]


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
