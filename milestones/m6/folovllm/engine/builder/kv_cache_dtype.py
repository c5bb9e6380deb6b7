"""LLM(kv_cache_dtype="fp8"): what the KV cache holds, and which attention can read that.

                 "auto"                      "fp8", "fp8_e4m3"
    bytes        the model's dtype           1 a number, kept as uint8: whatever moves blocks needs to know no more
    CPU          any backend                 backends/fp8.py
    CUDA         any backend                 backends/fp8.py

Blocks, their tables and hashes, swapping, copy-on-write and CUDA graphs are the same: they know no numbers.

vLLM: config/cache.py (CacheDType)
"""

from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend, get_backend_class
from folovllm.attention.backends.fp8 import PagedFp8Backend, TritonFp8Backend
from folovllm.config import EngineConfig

# By the name under which a user knows the backend that reads the same cache in the model's dtype.
BACKENDS: dict[str, type[AttentionBackend]] = {"triton": TritonFp8Backend, "paged_torch": PagedFp8Backend}


def cache_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """Of the cache's tensors, for a model of `dtype`."""
    return dtype if config.cache_config.kv_cache_dtype == "auto" else torch.uint8


def select_fp8_backend(config: EngineConfig, device: torch.device) -> type[AttentionBackend]:
    """The backend of an engine with kv_cache_dtype="fp8".

    Raises:
        ValueError: the backend that was asked for cannot read 8 bits, none can on this device, or batch_invariant=True
            was asked for as well; the text says what to do.
    """
    wanted, name = config.cache_config.kv_cache_dtype, config.model_config.attention_backend
    if config.model_config.batch_invariant:
        raise ValueError(
            f"kv_cache_dtype {wanted!r} cannot be combined with batch_invariant=True: its attention reads no 8 bits; "
            f"leave one of them out"
        )
    if name is not None and name not in BACKENDS:
        get_backend_class(name)  # an unknown name has its own error
        raise ValueError(
            f"attention_backend {name!r} cannot read kv_cache_dtype {wanted!r}; leave attention_backend out, or give "
            f"{' or '.join(map(repr, BACKENDS))}"
        )
    backend = BACKENDS[name or ("triton" if device.type == "cuda" else "paged_torch")]
    if (reason := backend.unavailable_reason(device)) is not None:
        raise ValueError(f"kv_cache_dtype {wanted!r} cannot be read on {device}: {reason}; give kv_cache_dtype='auto'")
    return backend
