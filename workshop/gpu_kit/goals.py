"""The goals beside what a run of the kit has measured: the table at the head of its page."""

from __future__ import annotations

from typing import Any

from workshop.bench.gpu_changes import read_rows
from workshop.gpu_kit.process import Record

Row = dict[str, Any]


def goals_table(record: Record) -> list[Row]:
    """Predictions are those that the documentation shows. `here`: None where the part that measures it has not run."""
    here = measured(record)
    return [row | {"here": here.get(row["goal"])} for row in read_rows("gpu-goals-h200")]


def measured(record: Record) -> Row:
    """By the goals' names."""
    found: Row = {}

    def rows(part: str, kind: str = "rows") -> list[Row]:
        report = record.report(part) or {}
        return list(report.get(kind) or [])

    for row in rows("preset"):
        found["the workload, tokens/s"] = row["output_tokens_per_s"]
    for row in rows("cache-fp8"):
        found["the workload, cache in 8 bits, tokens/s"] = row["output_tokens_per_s"]
    for row in rows("decode"):
        found[f"{row['batch']} at 1,024 tokens, tokens/s"] = row["output_tokens_per_s"]
    for row in rows("serving", "first"):
        found[f"first token of a prompt of {row['prompt']}, ms"] = row["ms"]
    for row in rows("serving", "filters"):
        found[f"{row['sampling'].replace(', ', ' with ')}, {row['batch']}: % more"] = 100 * row["more"]
    for row in rows("speculation"):
        found[f"drafts, 80% right, {row['requests']} requests"] = row["ratio"]
    plain = {row["batch"]: row["step_ms"] for row in rows("8b-bfloat16")}
    for row in rows("8b-w4a16"):
        if row["batch"] in plain:
            found[f"W4A16 over bf16, 8B, {row['batch']} rows"] = plain[row["batch"]] / row["step_ms"]
    rates = [row["decode_tokens_per_s"] for part in ("bfloat16", "w4a16") for row in rows(f"weights-{part}")]
    if len(rates) == 2:
        found["W4A16 over bf16, 0.6B, 8 requests"] = rates[1] / rates[0]
    return found
