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

from folovllm.attention.backend import AttentionBackend, select_backend
from folovllm.config import EngineConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.engine.core import EngineCore
from folovllm.engine.input_processor import Room
from folovllm.engine.limits import resolve_scheduler_config
from folovllm.models.compiled_decoder import can_compile_decoder, compile_decoder
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.fused_compiled import can_fuse_compiled, fuse_compiled
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.current_device import current_device
from folovllm.utils.logging import init_logger
from folovllm.worker.cuda_graph import CudaGraphs, bytes_of_graphs, capture_sizes
from folovllm.worker.kv_cache import kv_bytes_per_token
from folovllm.worker.memory import size_kv_cache
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.profile import peak_bytes_of_full_step

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
        ValueError: no block fits into memory, or the configuration's parts contradict one another.
    """
    with current_device(device):
        return _build(config, hf_config, dtype, device, eos_token_ids)


def _build(
    config: EngineConfig,
    hf_config: Any,
    dtype: torch.dtype,
    device: torch.device,
    eos_token_ids: frozenset[int],
) -> EngineCore:
    model_config, cache_config = config.model_config, config.cache_config
    assert model_config.max_model_len is not None
    # What can be refused is refused before the weights are read.
    limits = resolve_scheduler_config(config.scheduler_config, model_config.max_model_len, device.type)
    backend = _backend_for(config, device)
    weights: Path | None = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
    model = build_model(hf_config, model_config.max_model_len, dtype, device, weights, seed=model_config.seed)
    _make_fast(model, device, layer_by_layer=model_config.enforce_eager)
    block_size = cache_config.block_size
    with_graphs = device.type == "cuda" and backend.supports_cuda_graphs and not model_config.enforce_eager

    def measure_step() -> int:
        step = peak_bytes_of_full_step(model, backend, block_size, limits, dtype=dtype, device=device)
        if not with_graphs:
            return step
        sizes, longest = capture_sizes(limits.max_num_seqs), model_config.max_model_len
        assert longest is not None
        return step + bytes_of_graphs(
            model, backend, sizes, max_model_len=longest, block_size=block_size, dtype=dtype, device=device
        )

    token_bytes = kv_bytes_per_token(model.decoder_spec, dtype)
    cache_size = size_kv_cache(token_bytes, cache_config, limits, device, measure_step)
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
        model,
        backend,
        num_blocks=cache_size.num_blocks,
        num_swap_blocks=cache_size.num_swap_blocks,
        block_size=cache_config.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=max_model_len,
        dtype=dtype,
        device=device,
        eos_token_ids=eos_token_ids,
    )
    if device.type == "cuda":
        runner.kv_cache.backend.warm_up(runner.kv_cache.tensors[0])
        runner.sampling.warm_up(dtype)
    if with_graphs:
        sizes = capture_sizes(scheduler.max_num_seqs)
        runner.graphs = CudaGraphs(
            model, sizes, max_model_len=max_model_len, block_size=block_size, dtype=dtype, device=device
        )
        logger.info(
            "CUDA graphs for %d batch sizes up to %d: %.2f GiB", len(sizes), sizes[-1], runner.graphs.pool_bytes / 2**30
        )
    room = Room(max_model_len, cache_size.num_blocks, cache_config.block_size, scheduler.max_num_seqs)
    run_ahead = device.type == "cuda" if limits.async_scheduling is None else limits.async_scheduling
    return EngineCore(scheduler, runner, limits, room, cache_size, run_ahead=run_ahead)


def _backend_for(config: EngineConfig, device: torch.device) -> type[AttentionBackend]:
    model_config, block_size = config.model_config, config.cache_config.block_size
    backend = select_backend(model_config.attention_backend, device)
    longest = model_config.max_model_len or 0
    if not backend.reads_block_tables and block_size < longest:
        raise ValueError(
            f"attention_backend {backend.name!r} reads a sequence from one block: it needs a block_size of at "
            f"least max_model_len ({longest}), got {block_size}"
        )
    return backend


def _make_fast(model: DecoderForCausalLM, device: torch.device, *, layer_by_layer: bool) -> None:
    """Fewer and cheaper operations between the products, and weights in the layout that the products want."""
    if device.type == "cuda":
        from folovllm.models.fused import can_fuse, fuse  # loads Triton

        if can_fuse(device) is None:
            fuse(model)
    elif can_fuse_compiled(model) is None:
        fuse_compiled(model)
        if not layer_by_layer and can_compile_decoder(model) is None:
            compile_decoder(model)
