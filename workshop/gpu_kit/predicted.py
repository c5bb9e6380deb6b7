"""What time_line.py predicts for each kernel of a decode step, by the names that a profiler gives them.

The time line is about one step; here its assumptions are taken kernel by kernel, for any batch. Where a measurement
comes out otherwise, the row says which of the constants was wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from folovllm.attention.splits import choose_splits
from folovllm.bench.shapes import SHAPES
from workshop.bench import time_line
from workshop.bench.time_line import ATTENTION_LAUNCH, GPUS, ITEM, LAUNCH, TILE_TOKENS, Gpu

PRODUCTS, OTHERS = "products and head", "copies and others"
# The first that matches. Libraries name their products in many ways.
NAMES = {
    "decode": "_paged_decode",
    "merge of splits": "_merge",
    "norms": "rms_norm",
    "rotation": "norm_rotary",
    "SwiGLU": "silu_mul",
    "draw": "_sample|_draw|_race",
    PRODUCTS: "gemm|gemv|nvjet|cutlass|xmma|splitk|matmul|aten::(mm|addmm|linear)|_linear_kernel",
}


def label_of(kernel: str) -> str:
    return next((label for label, named in NAMES.items() if re.search(named, kernel, re.IGNORECASE)), OTHERS)


def gpu_named(name: str, bandwidth: float) -> Gpu:
    """As the time line knows it; another one by the bandwidth that was measured, bytes/s."""
    return next((gpu for key, gpu in GPUS.items() if key in name.lower()), Gpu(name, bandwidth))


def products_of(shape: str) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a layer's four products and of the head."""
    found = SHAPES[shape]
    hidden, inner = found["hidden_size"], found["intermediate_size"]
    heads, kv_heads, size = (found[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    return {
        "qkv": ((heads + 2 * kv_heads) * size, hidden),
        "o": (hidden, heads * size),
        "gate and up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (found["vocab_size"], hidden),
    }


def kernel_seconds(gpu: Gpu, shape: str, contexts: Sequence[int]) -> dict[str, float]:
    """Seconds a step, all layers together, of each label in NAMES; contexts: tokens of each sequence."""
    found, rows = SHAPES[shape], len(contexts)
    layers, hidden, inner = found["num_hidden_layers"], found["hidden_size"], found["intermediate_size"]
    heads, kv_heads, size = (found[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    head_bytes = 2 * size * ITEM

    def small(numbers: int) -> float:
        return LAUNCH + rows * numbers * ITEM / gpu.bandwidth

    splits = choose_splits(rows, kv_heads, max(contexts), TILE_TOKENS)
    attention = time_line.attention_seconds(gpu, contexts, kv_heads, head_bytes) + ATTENTION_LAUNCH
    sizes = products_of(shape)
    products = {name: time_line.product_seconds(gpu, rows, n, k) for name, (n, k) in sizes.items()}
    return {
        "decode": layers * attention,
        "merge of splits": layers * small(2 * splits * heads * size) if splits > 1 else 0.0,
        "norms": (2 * layers + 1) * small(4 * hidden),
        "rotation": layers * small((2 * heads + 5 * kv_heads) * size),  # and K and V into the cache
        "SwiGLU": layers * small(3 * inner),
        "draw": time_line.draw_seconds(gpu, rows, found["vocab_size"]) + LAUNCH,
        PRODUCTS: products["head"] + layers * (sum(products.values()) - products["head"]),
        OTHERS: time_line.UPLOAD_OPERATIONS * LAUNCH,
    }
