"""Builds an EngineCore: the model, its KV cache, the scheduler and the runner, made to fit one another.

What depends on what: the weights decide how much memory is left, that decides the number of blocks, and that how long a
sequence can get, which the scheduler and the check of new requests must know.

vLLM: v1/engine/core.py (EngineCore.__init__, _initialize_kv_caches)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from folovllm.attention.backend import AttentionBackend, get_backend_class
from folovllm.config import EngineConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.engine.builder.budgets import resolve_scheduler_config
from folovllm.engine.core import EngineCore
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.logging import init_logger
from folovllm.worker.kv_cache import kv_bytes_per_token
from folovllm.worker.memory import size_kv_cache
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.profile import peak_bytes, run_full_step

logger = init_logger(__name__)


def build_engine_core(
    config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device, eos_token_ids: frozenset[int],
) -> EngineCore:  # fmt: skip
    """`config` has max_model_len filled in.

    Raises:
        ValueError: no block fits into memory, or the configuration's parts contradict one another.
    """
    model_config, cache_config = config.model_config, config.cache_config
    # What can be refused is refused before the weights are read.
    limits = resolve_scheduler_config(config.scheduler_config, model_config.max_model_len)
    backend = _backend_for(config)
    weights: Path | None = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
    model = build_model(hf_config, model_config.max_model_len, dtype, device, weights, seed=model_config.seed)

    def full_step() -> int:
        return run_full_step(model, backend, cache_config.block_size, limits, dtype=dtype, device=device)

    cache_size = size_kv_cache(
        kv_bytes_per_token(model.decoder_spec, dtype),
        cache_config,
        limits,
        device,
        lambda: peak_bytes(full_step, device),
    )
    logger.info("KV cache: %s", cache_size)
    # What does not fit into the whole cache can never be served.
    max_model_len = min(model_config.max_model_len, cache_size.num_tokens)
    if max_model_len < model_config.max_model_len:
        logger.warning(
            "sequences end at %d tokens instead of max_model_len=%d: the KV cache holds no more",
            max_model_len, model_config.max_model_len,
        )  # fmt: skip
    limits = dataclasses.replace(limits, max_model_len=max_model_len)
    kv = KVCacheManager(cache_size.num_blocks, cache_config.block_size, cache_size.num_swap_blocks)
    scheduler = Scheduler(limits, kv, eos_token_ids)
    runner = ModelRunner(
        model, backend, num_blocks=cache_size.num_blocks, num_swap_blocks=cache_size.num_swap_blocks,
        block_size=cache_config.block_size, max_num_seqs=scheduler.max_num_seqs, max_model_len=max_model_len,
        dtype=dtype, device=device, eos_token_ids=eos_token_ids,
    )  # fmt: skip
    config = dataclasses.replace(
        config, scheduler_config=limits,
        model_config=dataclasses.replace(model_config, max_model_len=max_model_len),
        cache_config=dataclasses.replace(cache_config, num_kv_blocks=cache_size.num_blocks),
    )  # fmt: skip
    return EngineCore(scheduler, runner, config, cache_size)


def _backend_for(config: EngineConfig) -> type[AttentionBackend]:
    model_config, block_size = config.model_config, config.cache_config.block_size
    backend = get_backend_class(model_config.attention_backend or "paged_torch")
    longest = model_config.max_model_len or 0
    if not backend.reads_block_tables and block_size < longest:
        raise ValueError(
            f"attention_backend {backend.name!r} reads a sequence from one block: it needs a block_size of at "
            f"least max_model_len ({longest}), got {block_size}"
        )
    return backend
