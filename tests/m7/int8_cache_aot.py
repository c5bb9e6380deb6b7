"""Compiles the kernels of the KV cache in int8 for a GPU, which needs none, and prints what came out as JSON.

Run as a program, outside of pytest: there, without a GPU, Triton interprets.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import triton

from folovllm.attention.kernels import store_kv_int8
from tests.m4.attention_aot import compile_all, compile_kernel
from tests.m6 import aot

CODES = {"k_ptr": "*i8", "v_ptr": "*i8"}
VARIANTS = [
    *(aot.Variant("decode", "bf16", 128, splits) for splits in (1, 8)),
    aot.Variant("prefill", "bf16", 128, 2000),
    aot.Variant("decode", "fp32", 128, 8),
    aot.Variant("store", "bf16", 128, 0),
]


def compile_variant(variant: aot.Variant) -> dict[str, Any]:
    if variant.kernel != "store":
        return aot.compile_variant(variant, CODES)
    constants = {
        "HEADS": 8, "HEADS_PAD": 8, "HEAD_SIZE": variant.head_size,
        "HEAD_PAD": triton.next_power_of_2(variant.head_size), "BLOCK_SIZE": aot.BLOCK_SIZE,
    }  # fmt: skip
    caches = {"k_cache_ptr": "*i8", "v_cache_ptr": "*i8"}
    return compile_kernel(store_kv_int8._store_kv_int8, variant.dtype, constants, 4, **caches)


if __name__ == "__main__":
    json.dump(compile_all(compile_variant, VARIANTS), sys.stdout)
