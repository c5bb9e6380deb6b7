"""The bench of KV caches in 8 bits: what a token takes in each, and that each kind is asked and timed."""

from __future__ import annotations

import json
from pathlib import Path

from workshop.bench.__main__ import main

TOKEN_BYTES = {"auto": 2 * 2 * 2 * 16 * 2, "fp8": 2 * 2 * 2 * 16, "int8": 2 * 2 * 2 * (16 + 4)}  # of qwen3-tiny


def measure(folder: Path, *options: str) -> list[dict[str, object]]:
    path = folder / "found.json"
    assert main(["kvcache", "--shape", "qwen3-tiny", *options, "--json", str(path)]) == 0
    return json.loads(path.read_text())["rows"]


def test_the_error_of_each_kind_is_told_beside_the_models_own_dtype(tmp_path: Path) -> None:
    rows = measure(tmp_path, "--texts", "2", "--length", "24")
    assert [(row["dtype"], row["kv_cache"]) for row in rows] == [
        (dtype, kind) for dtype in ("bfloat16", "float32") for kind in ("fp8", "int8")
    ]
    assert all(row["token_bytes"] == TOKEN_BYTES[str(row["kv_cache"])] for row in rows)
    fp8, int8 = (float(str(row["mean_error"])) for row in rows[2:])
    assert 0 < int8 < fp8


def test_decode_steps_of_each_kind_are_timed_behind_the_same_context(tmp_path: Path) -> None:
    rows = measure(tmp_path, "--context", "20", "--rounds", "1", "--steps", "1")
    assert {row["kv_cache"]: row["token_bytes"] for row in rows} == TOKEN_BYTES
    assert all(row["context"] == 20 and float(str(row["step_ms"])) > 0 for row in rows)
