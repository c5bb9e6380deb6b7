"""LLM(kv_cache_dtype="fp8") or "int8": what the KV cache holds, and which attention can read that.

                       "auto"               "fp8", "fp8_e4m3"         "int8"
    bytes of a head    the model's dtype    1 a number, as uint8      1 a number, and 4 for a scale
    CPU                any backend          backends/fp8.py           backends/int8.py
    CUDA               any backend          backends/fp8.py           backends/int8.py
    batch_invariant    invariant.py         refused                   backends/int8.py

Blocks, their tables and hashes, swapping, copy-on-write and CUDA graphs are the same: they know no numbers.

vLLM: config/cache.py (CacheDType)
"""

from __future__ import annotations

from typing import Any

import torch

from folovllm.attention.backend import AttentionBackend, get_backend_class
from folovllm.attention.backends.fp8 import PagedFp8Backend, TritonFp8Backend
from folovllm.attention.backends.int8 import (
    CPUInt8Backend,
    CPUInvariantInt8Backend,
    PagedInt8Backend,
    TritonInt8Backend,
    TritonInvariantInt8Backend,
)
from folovllm.config import EngineConfig
from folovllm.engine.builder.batch_invariance import select_invariant_backend

# By the name under which a user knows the backend that reads the same cache in the model's dtype; in order of
# preference, those that can run on a CPU last.
FP8: dict[str, type[AttentionBackend]] = {"triton": TritonFp8Backend, "paged_torch": PagedFp8Backend}
INT8: dict[str, type[AttentionBackend]] = {
    "triton": TritonInt8Backend,
    "cpu": CPUInt8Backend,
    "paged_torch": PagedInt8Backend,
}


def cache_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """Of the cache's tensors, for a model of `dtype`."""
    return {"auto": dtype, "int8": torch.int8}.get(config.cache_config.kv_cache_dtype, torch.uint8)


def select_8_bit_backend(
    config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device
) -> type[AttentionBackend]:
    """The backend of an engine with kv_cache_dtype="fp8" or "int8".

    Raises:
        ValueError: the backend that was asked for cannot read 8 bits, none can on this device, or batch_invariant=True
            was asked for as well and cannot be kept; the text says what to do.
    """
    wanted, name = config.cache_config.kv_cache_dtype, config.model_config.attention_backend
    backends = INT8 if wanted == "int8" else FP8
    if config.model_config.batch_invariant:
        if wanted == "int8":
            select_invariant_backend(config.model_config, hf_config, dtype, device)
            return CPUInvariantInt8Backend if device.type == "cpu" else TritonInvariantInt8Backend
        raise ValueError(
            f"kv_cache_dtype {wanted!r} cannot be combined with batch_invariant=True: its attention reads no 8 bits of "
            f"this kind; give 'int8', or leave one of them out"
        )
    if name is not None and name not in backends:
        get_backend_class(name)  # an unknown name has its own error
        raise ValueError(
            f"attention_backend {name!r} cannot read kv_cache_dtype {wanted!r}; leave attention_backend out, or give "
            f"{' or '.join(map(repr, backends))}"
        )
    if name is not None:
        backend = backends[name]
    elif device.type == "cuda":
        backend = backends["triton"]
    else:
        on_cpu = [each for each in backends.values() if not each.only_by_name(device)]
        backend = next(each for each in on_cpu if each.unavailable_reason(device) is None)
    if (reason := backend.unavailable_reason(device)) is not None:
        raise ValueError(f"kv_cache_dtype {wanted!r} cannot be read on {device}: {reason}; give kv_cache_dtype='auto'")
    return backend
