"""Builds an EngineCore: the model, its KV cache, the scheduler and the runner, made to fit one another.

The weights decide how much memory is left, and that decides how many sequences can run at a time.

vLLM: v1/engine/core.py (EngineCore.__init__, _initialize_kv_caches)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from folovllm.attention.backends.dense import DenseBackend
from folovllm.config import EngineConfig
from folovllm.core.scheduler import Scheduler
from folovllm.engine.builder.budgets import resolve_scheduler_config
from folovllm.engine.core import EngineCore
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.logging import init_logger
from folovllm.worker.kv_cache import kv_bytes_per_token
from folovllm.worker.memory import kv_cache_bytes, num_blocks_that_fit
from folovllm.worker.model_runner import ModelRunner

logger = init_logger(__name__)


def build_engine_core(
    config: EngineConfig,
    hf_config: Any,
    dtype: torch.dtype,
    device: torch.device,
    eos_token_ids: frozenset[int],
) -> EngineCore:
    """`config` has max_model_len filled in.

    Raises:
        ValueError: no sequence fits into memory, or the configuration's parts contradict one another.
    """
    model_config = config.model_config
    max_model_len = model_config.max_model_len
    # What can be refused is refused before the weights are read.
    limits = resolve_scheduler_config(config.scheduler_config, max_model_len)
    weights: Path | None = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
    model = build_model(hf_config, max_model_len, dtype, device, weights, seed=model_config.seed)
    # A block of the cache is a slot here: room for one sequence, however long it gets.
    slot_bytes = kv_bytes_per_token(model.decoder_spec, dtype) * max_model_len
    num_slots = num_blocks_that_fit(
        kv_cache_bytes(device, config.cache_config.gpu_memory_utilization),
        block_bytes=slot_bytes,
        most=limits.max_num_seqs,
    )
    logger.info("KV cache: %d slots of %d tokens, %.2f GiB", num_slots, max_model_len, num_slots * slot_bytes / 2**30)
    scheduler = Scheduler(limits, num_slots, eos_token_ids)
    runner = ModelRunner(
        model,
        DenseBackend,
        num_blocks=num_slots,
        block_size=max_model_len,
        max_num_seqs=num_slots,
        max_model_len=max_model_len,
        dtype=dtype,
        device=device,
        eos_token_ids=eos_token_ids,
    )
    return EngineCore(scheduler, runner, dataclasses.replace(config, scheduler_config=limits))
