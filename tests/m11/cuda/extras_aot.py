"""Compiles the attention kernels with a window, a soft-cap and sinks for a GPU, as tests/m4/attention_aot.py does."""

from __future__ import annotations

import json
import sys
from typing import Any

from folovllm.attention.kernels.paged_decode import MAX_SPLITS
from tests.m4.attention_aot import Variant, compile_all, compile_variant

VARIANTS = [
    Variant("decode", "bf16", 64, 8, 16, 1),  # GPT-OSS
    Variant("decode", "bf16", 128, 2, 16, 8),
    Variant("decode", "bf16", 256, 2, 16, MAX_SPLITS),  # Gemma 2
    Variant("decode", "fp32", 128, 2, 16, 8),
    Variant("prefill", "bf16", 64, 8, 16, 10),
    Variant("prefill", "bf16", 128, 2, 16, 2000),
    Variant("prefill", "bf16", 256, 2, 16, 2000),
    Variant("prefill", "bf16", 128, 2, 16, 0),
    Variant("prefill", "fp32", 64, 2, 16, 2000),
]


def compile_with_extras(variant: Variant) -> dict[str, Any]:
    return compile_variant(variant, {"WINDOW": 4096, "SOFT_CAP": 50.0}, sinks_ptr="*bf16")


if __name__ == "__main__":
    json.dump(compile_all(compile_with_extras, VARIANTS), sys.stdout)
