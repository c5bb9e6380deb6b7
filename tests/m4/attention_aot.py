"""Compiles the attention kernels for a Hopper GPU, which needs none, and prints what came out as JSON.

Run as a program, outside of pytest: there, without a GPU, Triton interprets. One line per kernel: how much shared
memory a program takes, and how often instructions occur in the machine's assembly language.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from folovllm.attention.kernels import paged_decode, paged_prefill, store_kv
from folovllm.attention.kernels.tile import STAGES, padded_head_size

HOPPER = GPUTarget("cuda", 90, 32)
INSTRUCTIONS = ("cp.async.cg.shared.global", "wgmma.mma_async", "mma.sync", "ld.global.v4", "st.global.v4")
TYPES = {"tables_ptr": "*i32", "seq_lens_ptr": "*i32", "starts_ptr": "*i32", "slots_ptr": "*i64",
         "partial_ptr": "*fp32", "lse_ptr": "*fp32", "scale": "fp32"}  # fmt: skip


def compile_kernel(kernel: Any, dtype: str, constants: dict[str, Any], num_warps: int = 4) -> dict[str, Any]:
    signature: dict[str, str] = {}
    known: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], known[(place,)] = "constexpr", constants[name]
            continue
        signature[name] = TYPES.get(name, f"*{dtype}" if name.endswith("_ptr") else "i32")
        if name != "scale":  # as at run time, where addresses and strides are multiples of 16
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, known, attributes)
    compiled = triton.compile(source, target=HOPPER, options={"num_warps": num_warps, "num_stages": STAGES})
    counts = {name: compiled.asm["ptx"].count(name) for name in INSTRUCTIONS}
    return {"shared": compiled.metadata.shared, "cubin": len(compiled.asm["cubin"]), **counts}


def decode(dtype: str, head_size: int, splits: int, block_n: int) -> dict[str, Any]:
    constants = {
        "GROUP": 2, "GROUP_PAD": 16, "HEAD_SIZE": head_size, "HEAD_PAD": padded_head_size(head_size),
        "BLOCK_SIZE": 16, "BLOCK_N": block_n, "SPLITS": splits, "INTERPRETED": False,
    }  # fmt: skip
    return compile_kernel(paged_decode._paged_decode, dtype, constants)


def merge(splits: int) -> dict[str, Any]:
    constants = {"HEAD_SIZE": 128, "HEAD_PAD": 128, "BLOCK_N": 64, "SPLITS": splits, "SPLITS_PAD": splits}
    return compile_kernel(paged_decode._merge, "bf16", constants)


def prefill(dtype: str, head_size: int, rows: int) -> dict[str, Any]:
    head_pad = padded_head_size(head_size)
    block_m, block_n, num_warps = paged_prefill.choose_tiles(rows, head_pad, 4 if dtype == "fp32" else 2)
    constants = {
        "GROUP": 2, "HEAD_SIZE": head_size, "HEAD_PAD": head_pad, "BLOCK_SIZE": 16,
        "BLOCK_M": block_m, "BLOCK_N": block_n, "INTERPRETED": False,
    }  # fmt: skip
    return compile_kernel(paged_prefill._paged_prefill, dtype, constants, num_warps)


def main() -> None:
    results = {
        "store": compile_kernel(store_kv._store_kv, "bf16", {"HEAD_SIZE": 128, "ROW": 1024, "ROW_PAD": 1024}),
        "decode": decode("bf16", 128, splits=1, block_n=64),
        "decode in splits": decode("bf16", 128, splits=8, block_n=64),
        "decode, heads of 80": decode("fp16", 80, splits=1, block_n=64),
        "decode, float32": decode("fp32", 128, splits=1, block_n=32),
        "merge": merge(64),
        "prefill": prefill("bf16", 128, rows=2000),
        "prefill of few": prefill("fp16", 64, rows=10),
        "prefill, heads of 256": prefill("bf16", 256, rows=2000),
        "prefill, float32": prefill("fp32", 64, rows=2000),
    }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
