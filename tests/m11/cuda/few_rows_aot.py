"""Compiles the product of few rows for a GPU, which needs none, and products with codes and what is around them, and
prints what came out.

Run as a program, outside of pytest: there, without a GPU, Triton interprets.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from folovllm.layers.kernels.few_rows import TILES, _few_rows_kernel, constants
from tests.m4.attention_aot import CAPABILITY, compile_kernel
from tests.m7.codes_aot import Variant, compile_sums, compile_variant

# (out_features, in_features) of a layer's products in Qwen3-0.6B's shape, and of two in Qwen3-8B's.
SHAPES = {"qkv": (4096, 1024), "o": (1024, 2048), "gate up": (3072, 1024), "down": (1024, 3072)}
LARGE = {"8B gate up": (12288, 4096), "8B down": (4096, 12288)}


def compile_case(name: str, rows: int, out_features: int, in_features: int) -> dict[str, Any]:
    gated, normed = name.endswith("gate up"), name.endswith(("qkv", "gate up"))
    options = constants(rows, out_features, in_features, gated=gated)
    warps, stages = options.pop("num_warps"), options.pop("num_stages")
    flags = {"NORM": normed, "GATED": gated, "ADD": not normed, "HAS_BIAS": False, "INTERPRETED": False}
    compiled = compile_kernel(
        _few_rows_kernel, "bf16", {**options, **flags, "IN": in_features}, warps, stages, eps="fp32"
    )
    weights = options["COLUMNS"] * (1 + gated)
    step_bytes = 2 * weights * options["CHAINS"] * options["DEPTH"]
    under_way = min(stages - 1, in_features // (options["CHAINS"] * options["DEPTH"])) * step_bytes
    return compiled | {"under_way": under_way, "weight_rows": weights}


if __name__ == "__main__":
    cases = [(name, rows, *shape) for name, shape in SHAPES.items() for rows in TILES]
    cases += [(name, rows, *shape) for name, shape in LARGE.items() for rows in TILES[:2]]
    cases = cases if CAPABILITY == 90 else []  # other GPUs get the products with codes alone
    found = {f"{name}, {rows} rows": compile_case(name, rows, *shape) for name, rows, *shape in cases}
    for codes in ("4", "e4m3"):
        for rows in (1, 32, 64):
            found[f"codes of {codes}, {rows} rows"] = compile_variant(Variant("bf16", codes, 128, rows), PARTS=2)
    found["codes: sums and norm"] = compile_sums(2, NORM=True, COLUMNS=4096)
    json.dump(found, sys.stdout)
