"""Builds an EngineCore: the model, its KV cache, the scheduler and the runner, made to fit one another.

What depends on what: the weights decide how much memory is left, that decides the number of blocks, and that how long a
sequence can get, which the scheduler and the check of new requests must know.

vLLM: v1/engine/core.py (EngineCore.__init__, _initialize_kv_caches)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from folovllm.config import EngineConfig, SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.engine.builder.budgets import resolve_scheduler_config
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.core import EngineCore
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.logging import init_logger
from folovllm.worker.cuda_graph import CudaGraphs, bytes_of_graphs, capture_sizes
from folovllm.worker.kv_cache import KVCache, kv_bytes_per_token
from folovllm.worker.memory import CacheSize, size_kv_cache
from folovllm.worker.model_runner import ModelRunner, current_device
from folovllm.worker.profile import peak_bytes, run_full_step

logger = init_logger(__name__)


def build_engine_core(
    config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device, eos_token_ids: frozenset[int]
) -> EngineCore:
    """`config` has max_model_len filled in.

    Raises:
        ValueError: no block fits into memory, or the configuration's parts contradict one another.
    """
    model_config, cache_config = config.model_config, config.cache_config
    longest = model_config.max_model_len
    with current_device(device):
        # What can be refused is refused before the weights are read.
        limits = resolve_scheduler_config(config.scheduler_config, longest, device.type)
        chosen = choose_components(config, hf_config, dtype, device)
        weights = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
        model = build_model(hf_config, longest, dtype, device, weights, seed=model_config.seed, ops=chosen.ops)
        size = _size_cache(config, model, chosen, limits, dtype, device)
        limits = _within_cache(limits, size)
        kv = KVCacheManager(size.num_blocks, size.block_size, size.num_swap_blocks)
        scheduler = Scheduler(limits, kv, eos_token_ids)
        runner = _make_runner(model, chosen, limits, size, dtype, device, eos_token_ids)
    config = dataclasses.replace(
        config, scheduler_config=limits,
        model_config=dataclasses.replace(model_config, max_model_len=limits.max_model_len),
        cache_config=dataclasses.replace(cache_config, num_kv_blocks=size.num_blocks),
    )  # fmt: skip
    run_ahead = device.type == "cuda" if limits.async_scheduling is None else limits.async_scheduling
    return EngineCore(scheduler, runner, config, size, run_ahead=run_ahead)


def _size_cache(
    config: EngineConfig, model: DecoderForCausalLM, chosen: Components, limits: SchedulerConfig, dtype: torch.dtype,
    device: torch.device,
) -> CacheSize:  # fmt: skip
    """As many blocks as fit beside the weights and the largest step, or as many as the user asked for."""
    block_size = config.cache_config.block_size

    def full_step() -> int:
        return run_full_step(
            model, chosen.backend, block_size, limits, dtype=chosen.cache_dtype, device=device, draws=chosen.draws
        )

    def measure_step() -> int:
        step = peak_bytes(full_step, device)
        if not chosen.graphs:
            return step
        return step + bytes_of_graphs(
            model, chosen.backend, capture_sizes(limits.max_num_seqs), max_model_len=limits.max_model_len,
            block_size=block_size, dtype=dtype, device=device, draws=chosen.draws, cache_dtype=chosen.cache_dtype,
        )  # fmt: skip

    token_bytes = kv_bytes_per_token(model.decoder_spec, chosen.cache_dtype)
    size = size_kv_cache(token_bytes, config.cache_config, limits, device, measure_step)
    logger.info("KV cache: %s", size)
    return size


def _within_cache(limits: SchedulerConfig, size: CacheSize) -> SchedulerConfig:
    """What does not fit into the whole cache can never be served."""
    longest = min(limits.max_model_len, size.num_tokens)
    if longest < limits.max_model_len:
        logger.warning(
            "sequences end at %d tokens instead of max_model_len=%d: the KV cache holds no more",
            longest, limits.max_model_len,
        )  # fmt: skip
    return dataclasses.replace(limits, max_model_len=longest)


def _make_runner(
    model: DecoderForCausalLM, chosen: Components, limits: SchedulerConfig, size: CacheSize, dtype: torch.dtype,
    device: torch.device, eos_token_ids: frozenset[int],
) -> ModelRunner:  # fmt: skip
    """The runner, with everything compiled and recorded that would make a first request wait."""
    longest, block_size = limits.max_model_len, size.block_size
    kv_cache = KVCache(  # and the null block
        model, chosen.backend, num_blocks=size.num_blocks + 1, block_size=block_size, dtype=chosen.cache_dtype,
        device=device,
    )  # fmt: skip
    sampling = chosen.sampler(model.decoder_spec.vocab_size, eos_token_ids, device, uses_kernel=chosen.draws)
    if device.type == "cuda":
        kv_cache.backend.warm_up(kv_cache.tensors[0], dtype)
        sampling.warm_up(dtype)
    graphs = None
    if chosen.graphs:
        sizes = capture_sizes(limits.max_num_seqs)
        graphs = CudaGraphs(
            model, sizes, max_model_len=longest, block_size=block_size, dtype=dtype, device=device, draws=chosen.draws
        )
        logger.info(
            "CUDA graphs for %d batch sizes up to %d: %.2f GiB", len(sizes), sizes[-1], graphs.pool_bytes / 2**30
        )
    return ModelRunner(
        model, kv_cache, sampling, graphs, num_swap_blocks=size.num_swap_blocks, max_num_seqs=limits.max_num_seqs,
        max_model_len=longest, device=device,
    )  # fmt: skip
