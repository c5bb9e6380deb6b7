"""Compiles the products of experts with codes for a GPU, which needs none, and prints what came out.

Run as a program, outside of pytest: there, without a GPU, Triton interprets.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from folovllm.layers.kernels.experts import STAGES, tiles
from folovllm.layers.quantization.experts import _experts_codes_kernel
from tests.m4.attention_aot import SMALL, compile_all, compile_kernel

TYPES = {"words_ptr": "*i32", "scale_ptr": "*fp32", "offset_ptr": "*u8", "order_ptr": "*i64", "ends_ptr": "*i64"}
INS, OUTS = 2048, 1536  # gate and up of Qwen3-30B-A3B, whose layers have 128 experts
PAIRS = {"few": 64, "prefill": 65_536}


def compile_case(name: str) -> dict[str, Any]:
    rows, kernel, codes, group, dtype = name.split("-")
    bits, piece = 4 if codes == "4" else 8, min(int(group), 64)
    m, n, _ = tiles(PAIRS[rows], 128, 4 if dtype == "fp32" else 2, invariant=False)
    constants = {
        "IN": INS, "OUTS": OUTS, "LINES": INS // (piece * 16 // bits), "GATHERS": kernel == "gather", "BITS": bits,
        "GROUP": int(group), "PIECE": piece, "E4M3": codes == "e4m3", "EVEN": True, "EXPERTS": 128, "BLOCK_M": m,
        "BLOCK_N": n, "INTERPRETED": False,
    }  # fmt: skip
    stages = 2 if SMALL and rows == "prefill" else STAGES
    return compile_kernel(_experts_codes_kernel, dtype, constants, 4, stages, **TYPES)


if __name__ == "__main__":
    kinds = ["4-128-bf16", "8-128-bf16", "e4m3-128-bf16"]
    names = [f"{rows}-gather-{kind}" for rows in PAIRS for kind in kinds]
    names += ["few-put_back-4-128-bf16", "few-gather-4-32-bf16", "few-gather-4-128-fp32"]
    json.dump(compile_all(compile_case, names), sys.stdout)
