"""Compiles the products with codes for a GPU, which needs none, and prints what came out as JSON.

Run as a program, outside of pytest: there, without a GPU, Triton interprets.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from folovllm.layers.quantization.kernels import linear_codes
from folovllm.layers.quantization.plan import choose_plan
from tests.m4.attention_aot import SMALL, compile_all, compile_kernel

TYPES = {"words_ptr": "*i32", "scale_ptr": "*fp32", "offset_ptr": "*u8", "sums_ptr": "*fp32"}
OUTS, LINES = 1024, 12  # as Qwen3-0.6B's down


class Variant(NamedTuple):
    dtype: str
    bits: int
    group: int
    rows: int
    """0: one tile for all numbers of rows."""

    def __str__(self) -> str:
        return "-".join(map(str, self))


VARIANTS = [
    *(Variant("bf16", bits, 128, rows) for bits in (4, 8) for rows in (1, 64, 2048, 0)),
    *(Variant("bf16", 4, group, 1) for group in (16, 32)),
    *(Variant("fp16", 4, 128, rows) for rows in (1, 2048)),
    *(Variant("fp32", 4, 128, rows) for rows in (1, 2048)),
]


def compile_variant(variant: Variant) -> dict[str, Any]:
    element_size = 4 if variant.dtype == "fp32" else 2
    plan = choose_plan(
        variant.rows or 1, OUTS, LINES, element_size, invariant=not variant.rows, small=SMALL
    )  # fmt: skip
    constants = {
        "BITS": variant.bits, "GROUP": variant.group, "PIECE": min(variant.group, 32), "EVEN": True,
        "HAS_BIAS": False, "BLOCK_M": plan.rows, "BLOCK_N": plan.outs, "INTERPRETED": False,
    }  # fmt: skip
    out = {"out_ptr": "*fp32"} if plan.splits > 1 else {}
    kernel = linear_codes._linear_codes_kernel
    return compile_kernel(kernel, variant.dtype, constants, plan.warps, plan.stages, **TYPES, **out)


def compile_sums(splits: int) -> dict[str, Any]:
    constants = {"SPLITS": splits, "HAS_BIAS": True, "COLUMNS": linear_codes.COLUMNS}
    return compile_kernel(linear_codes._add_splits_kernel, "bf16", constants, 4, **TYPES)


if __name__ == "__main__":
    sums = {f"sums-{splits}": compile_sums(splits) for splits in (2, 8)}
    json.dump(compile_all(compile_variant, VARIANTS) | sums, sys.stdout)
