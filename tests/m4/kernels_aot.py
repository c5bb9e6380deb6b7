"""Compiles the fused layers' and the sampler's kernels for a GPU, which needs none, and prints what came out.

Run as a program, outside of pytest: there, without a GPU, Triton interprets. All of them, or those that are named.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from triton import cdiv, next_power_of_2

from folovllm.layers.kernels.add_rms_norm import _add_rms_norm_kernel
from folovllm.layers.kernels.norm_rotary import HEADS, _norm_rotary_kernel
from folovllm.layers.kernels.silu_mul import COLUMNS, _silu_mul_kernel
from folovllm.sample.kernels import sampler
from tests.m4.attention_aot import IS_AMD, compile_kernel

VOCAB = 151_936
TYPES = {
    "cos_ptr": "*fp32", "sin_ptr": "*fp32", "eps": "fp32", "values_stride": "i64", "slots_ptr": "*i64",
    "temperature_ptr": "*fp64", "top_k_ptr": "*i64", "top_p_ptr": "*fp64", "min_p_ptr": "*fp64", "seed_ptr": "*i64",
    "offset_ptr": "*i64", "token_ptr": "*i64", "kept_ptr": "*i8", "lanes_ptr": "*fp32", "counters_ptr": "*i32",
    "list_ptr": "*i32",
}  # fmt: skip
DRAW = {
    "NOT_FINITE": -1, "LANES": sampler.LANES, "DEEP": sampler.DEEP, "BLOCK": sampler.BLOCK, "seed_stride": 1,
    "TILES": next_power_of_2(cdiv(VOCAB, sampler.LANES)), "RANK": sampler.RANK, "MOST": sampler.MOST,
    "FEW": sampler.FEW, "TILE": sampler.TILE,
}  # fmt: skip
PARTS = sampler.LANES // sampler.PART_LANES
# As Qwen3-0.6B has them: the kernel, its dtype, what is compiled in, the warps.
CASES: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "norm": (_add_rms_norm_kernel, "bf16", {"ADD": True, "BLOCK": 1024}, 4),
    "rotary": (_norm_rotary_kernel, "bf16", {"NORM": True, "STORE": True, "HEADS": HEADS, "BLOCK": 64}, 2),
    "rotary alone": (_norm_rotary_kernel, "bf16", {"NORM": False, "STORE": False, "HEADS": HEADS, "BLOCK": 64}, 2),
    "silu": (_silu_mul_kernel, "bf16", {"COLUMNS": COLUMNS}, 4),
    "draw": (sampler._sample_kernel, "bf16", {**DRAW, "REPORT": False, "SHIFT": 16}, sampler.NUM_WARPS),
    "draw of edited": (sampler._sample_kernel, "fp32", {**DRAW, "REPORT": True, "SHIFT": 0}, sampler.NUM_WARPS),
    "lanes": (sampler._sample_lanes_kernel, "bf16", {"PARTS": PARTS, "LANES": sampler.PART_LANES, "DEEP": 8}, 1),
}

if __name__ == "__main__":
    named = sys.argv[1:] or list(CASES)
    limits = {} if IS_AMD else {"draw": {"maxnreg": sampler.MOST_REGISTERS}}
    found = {name: compile_kernel(*CASES[name], limit=limits.get(name), **TYPES) for name in named}
    json.dump(found, sys.stdout)
