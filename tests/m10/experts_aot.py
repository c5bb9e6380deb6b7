"""Compiles the kernels of experts for a GPU, which needs none, and prints what came out as JSON.

Run as a program, outside of pytest: there, without a GPU, Triton interprets.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from folovllm.layers.kernels import experts
from tests.m4.attention_aot import compile_all, compile_kernel

TYPES = {"order_ptr": "*i64", "ends_ptr": "*i64", "experts_ptr": "*i64", "weights_ptr": "*fp32"}
# As Qwen3-30B-A3B has them, of 128 experts: the dtype, the pairs of tokens and experts, and whether by the dtype alone.
CASES = {
    "few rows": ("bf16", 64, False), "many rows": ("bf16", 65_536, False), "invariant": ("bf16", 65_536, True),
    "float32": ("fp32", 64, False),
}  # fmt: skip


def compile_case(name: str) -> dict[str, Any]:
    kernel, case = name.split(": ")
    dtype, pairs, invariant = CASES[case]
    if kernel == "combine":
        return compile_kernel(experts.combine_kernel, dtype, {"COLUMNS": experts.COLUMNS}, 4, **TYPES)
    if kernel == "route":
        sizes = {"TOP_K": 8, "RENORMALIZE": True, "EXPERTS": 128, "PLACES": 8}
        return compile_kernel(experts._route_kernel, dtype, sizes, 1, **TYPES)
    if kernel == "group":
        return compile_kernel(experts._group_kernel, dtype, {"PAIRS": experts.PAIRS}, 4, **TYPES)
    m, n, k = experts.tiles(pairs, 128, 4 if dtype == "fp32" else 2, invariant=invariant)
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    constants = {**tile, "GATED": kernel == "gate_up", "EXPERTS": 128, "INTERPRETED": False}
    return compile_kernel(experts._experts_kernel, dtype, constants, 4, experts.STAGES, **TYPES)


def main() -> None:
    names = [f"{kernel}: {case}" for kernel in ("gate_up", "down") for case in CASES]
    names += ["route: float32", "group: few rows", "combine: few rows"]
    json.dump(compile_all(compile_case, names), sys.stdout)


if __name__ == "__main__":
    main()
