"""Compiles the products with codes for a GPU, which needs none, and prints what came out as JSON.

Run as a program, outside of pytest: there, without a GPU, Triton interprets.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from folovllm.layers.quantization.kernels import linear_codes
from folovllm.layers.quantization.plan import choose_plan
from tests.m4.attention_aot import CAPABILITY, SMALL, compile_all, compile_kernel

TYPES = {"words_ptr": "*i32", "scale_ptr": "*fp32", "offset_ptr": "*u8", "sums_ptr": "*fp32"}
OUTS, LINES = 1024, 12  # as Qwen3-0.6B's down


class Variant(NamedTuple):
    dtype: str
    codes: str
    """4, 8 or e4m3."""
    group: int
    rows: int
    """0: one tile for all numbers of rows."""

    def __str__(self) -> str:
        return "-".join(map(str, self))


VARIANTS = [
    *(Variant("bf16", codes, 128, rows) for codes in ("4", "8", "e4m3") for rows in (1, 32, 64, 2048, 0)),
    *(Variant("bf16", "4", group, rows) for group in (16, 32) for rows in (1, 2048)),
    *(Variant("fp16", codes, 128, 1) for codes in ("4", "e4m3")),
    Variant("fp16", "4", 128, 2048),
    *(Variant("fp32", codes, 128, 1) for codes in ("4", "e4m3")),
]


def compile_variant(variant: Variant, **more: Any) -> dict[str, Any]:
    """more: further constants."""
    element_size = 4 if variant.dtype == "fp32" else 2
    plan = choose_plan(
        variant.rows or 1, OUTS, LINES, element_size, invariant=not variant.rows, small=SMALL,
        tensor_memory=CAPABILITY // 10 == 10,
    )  # fmt: skip
    constants = {
        "BITS": 4 if variant.codes == "4" else 8, "E4M3": variant.codes == "e4m3", "GROUP": variant.group,
        "PIECE": min(variant.group, 64), "EVEN": True, "HAS_BIAS": False, "BLOCK_M": plan.rows, "BLOCK_N": plan.outs,
        "PARTS": 1, "INTERPRETED": False, **more,
    }  # fmt: skip
    out = {"out_ptr": "*fp32"} if plan.splits > 1 and not more else {}
    kernel = linear_codes._linear_codes_kernel
    return compile_kernel(kernel, variant.dtype, constants, plan.warps, plan.stages, **TYPES, **out)


def compile_sums(splits: int, **more: Any) -> dict[str, Any]:
    constants = {"SPLITS": splits, "HAS_BIAS": True, "COLUMNS": linear_codes.COLUMNS, **more}
    return compile_kernel(linear_codes._add_splits_kernel, "bf16", constants, 4, **TYPES)


if __name__ == "__main__":
    sums = {f"sums-{splits}": compile_sums(splits) for splits in (2, 8)}
    json.dump(compile_all(compile_variant, VARIANTS) | sums, sys.stdout)
