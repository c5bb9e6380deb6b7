"""Compiles M6's kernels for a GPU, which needs none, and prints what came out as JSON: attention over a cache of
8 bits, and the products that batch invariance takes.

Run as a program, outside of pytest: there, without a GPU, Triton interprets. All of them, or those whose names begin
with one of the words.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import triton

from folovllm.attention.kernels import paged_decode, paged_prefill, store_kv_fp8
from folovllm.attention.kernels.tile import padded_head_size, tile_tokens
from folovllm.layers.kernels import matmul
from tests.m4.attention_aot import CAPABILITY, IS_AMD, SMALL, compile_all, compile_kernel

GROUP, BLOCK_SIZE = 2, 16
BYTES = {"k_ptr": "*fp8e4nv", "v_ptr": "*fp8e4nv"}


class Variant(NamedTuple):
    kernel: str
    dtype: str
    head_size: int
    detail: int
    """Of decode its splits, of prefill the rows of its longest sequence, of linear whether there is a bias."""

    def __str__(self) -> str:
        return "-".join(map(str, self))


VARIANTS = [
    *(Variant("decode", "bf16", size, splits) for size in (64, 128, 256) for splits in (1, 8)),
    *(Variant("prefill", "bf16", size, rows) for size in (64, 128, 256) for rows in (10, 60, 2000)),
    *(Variant("decode", "fp32", size, splits) for size in (16, 32, 64, 80, 128, 256) for splits in (1, 8)),
    *(Variant("prefill", "fp32", size, rows) for size in (16, 32, 64, 80, 128, 256) for rows in (10, 2000)),
    Variant("decode", "fp16", 80, 1),
    Variant("prefill", "fp16", 128, 2000),
    Variant("store", "bf16", 128, 0),
    *(Variant("linear", dtype, 0, bias) for dtype in ("bf16", "fp32") for bias in (0, 1)),
]


def compile_variant(variant: Variant, cache: dict[str, str] = BYTES) -> dict[str, Any]:
    """cache: the types of keys and values."""
    if variant.kernel == "linear":
        block_m, block_n, block_k, warps = matmul.tiles(4 if variant.dtype == "fp32" else 2)
        tiles = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_ROWS": matmul.GROUP_ROWS}
        constants = {**tiles, "HAS_BIAS": bool(variant.detail), "INTERPRETED": False}
        return compile_kernel(matmul._linear_kernel, variant.dtype, constants, warps, matmul.STAGES)
    if variant.kernel == "store":
        row = 8 * variant.head_size
        constants = {"HEAD_SIZE": variant.head_size, "ROW": row, "ROW_PAD": triton.next_power_of_2(row)}
        caches = {"k_cache_ptr": "*u8", "v_cache_ptr": "*u8"}
        return compile_kernel(store_kv_fp8._store_kv_fp8, variant.dtype, constants, 4, **caches)
    head_pad, itemsize = padded_head_size(variant.head_size), 4 if variant.dtype == "fp32" else 2
    constants = {
        "GROUP": GROUP, "HEAD_SIZE": variant.head_size, "HEAD_PAD": head_pad, "BLOCK_SIZE": BLOCK_SIZE,
        "INTERPRETED": False,
    }  # fmt: skip
    if variant.kernel == "decode":
        constants |= {
            "ROWS": 16, "MOST_SPLITS": variant.detail, "SPLIT": variant.detail > 1,
            "BLOCK_N": tile_tokens(head_pad, itemsize, SMALL),
        }  # fmt: skip
        warps = paged_decode.decode_warps(16, head_pad, itemsize, from_8_bits=True)
        limit = paged_decode.register_limit(16, head_pad, itemsize, SMALL)
        return compile_kernel(paged_decode._paged_decode, variant.dtype, constants, warps, limit=limit, **cache)
    block_m, block_n, warps = paged_prefill.choose_tiles(variant.detail, head_pad, itemsize, SMALL, from_8_bits=True)
    constants |= {"BLOCK_M": block_m, "BLOCK_N": block_n, "BY_POSITION": False}
    return compile_kernel(paged_prefill._paged_prefill, variant.dtype, constants, warps, **cache)


if __name__ == "__main__":
    # Earlier GPUs do not convert e4m3.
    able = [variant for variant in VARIANTS if IS_AMD or CAPABILITY >= 89 or variant.kernel == "linear"]
    named = [variant for variant in able if str(variant).startswith(tuple(sys.argv[1:] or [""]))]
    json.dump(compile_all(compile_variant, named), sys.stdout)
