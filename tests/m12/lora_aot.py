"""Compiles the kernels that add adapters for a GPU, which needs none, and prints what came out as JSON.

Run as a program, outside of pytest: there, without a GPU, Triton interprets.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from folovllm.layers.kernels import lora
from folovllm.layers.kernels.experts import STAGES
from tests.m4.attention_aot import GPU, compile_kernel

TYPES = {"rows_ptr": "*i64", "ends_ptr": "*i64", "low_ptr": "*fp32"}
# Of Qwen3-8B's layers, with rank 16: of q, k and v together, and behind the MLP. 4 adapters.
RANKS = {"qkv": (48, 4), "down": (16, 12)}
CHOSEN = {"GROUPS": 8, "ROWS": lora.ROWS, "RANKS": lora.RANKS, "INTERPRETED": False}


def compile_case(kernel: str, dtype: str, rank: int, parts: int) -> dict[str, Any]:
    if kernel == "shrink":
        constants = {"BLOCK_K": lora.columns(4 if dtype == "fp32" else 2), "PART": lora.PART}
    else:
        constants = {"RANK": rank, "PARTS": parts, "COLUMNS": lora.COLUMNS}
    function = getattr(lora, f"_{kernel}_kernel")
    return compile_kernel(function, dtype, CHOSEN | constants, 4, GPU.stages(STAGES), **TYPES)


if __name__ == "__main__":
    cases = [("shrink", dtype, "qkv") for dtype in ("bf16", "fp32")]
    cases += [("expand", dtype, layer) for dtype in ("bf16", "fp32") for layer in RANKS]
    json.dump({" ".join(case): compile_case(*case[:2], *RANKS[case[2]]) for case in cases}, sys.stdout)
