"""Builds an EngineCore: the model, its KV cache, the scheduler and the runner, made to fit one another.

What depends on what: the weights decide how much memory is left, that decides the number of blocks, and that how long a
sequence can get, which the scheduler and the check of new requests must know.

vLLM: v1/engine/core.py (EngineCore.__init__, _initialize_kv_caches)
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import Any

import torch

from folovllm.config import EngineConfig, SchedulerConfig
from folovllm.core.draft_length import DraftLength
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.engine.builder.budgets import resolve_scheduler_config
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.builder.proposer import load_draft, make_proposer, step_costs
from folovllm.engine.core import EngineCore
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.eagle import EagleHead
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.logging import init_logger
from folovllm.worker.cuda_graph import CudaGraphs, bytes_of_graphs, capture_sizes
from folovllm.worker.follower import LeadingGraphs, LeadingModel
from folovllm.worker.kv_cache import KVCache, kv_bytes_per_token
from folovllm.worker.memory import CacheSize, size_kv_cache
from folovllm.worker.model_runner import ModelRunner, current_device
from folovllm.worker.profile import peak_bytes, run_full_step
from folovllm.worker.proposer import Proposer

logger = init_logger(__name__)


def build_engine_core(
    config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device, eos_token_ids: frozenset[int],
    *, group: GroupCoordinator | None = None,
) -> EngineCore:  # fmt: skip
    """`config` has max_model_len filled in. group: of the ranks that compute the model together, which ends with the
    engine; None: there is one.

    Raises:
        ValueError: no block fits into memory, or the configuration's parts contradict one another.
    """
    model_config = config.model_config
    with current_device(device), ExitStack() as undo:
        if group is not None:
            undo.callback(group.close)
        # What can be refused is refused before the weights are read.
        limits = resolve_scheduler_config(config.scheduler_config, model_config.max_model_len, device.type)
        chosen = choose_components(config, hf_config, dtype, device)
        core = _build(config, hf_config, dtype, device, eos_token_ids, limits, chosen, group)
        undo.pop_all()
        return core


def _build(
    config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device, eos_token_ids: frozenset[int],
    limits: SchedulerConfig, chosen: Components, group: GroupCoordinator | None,
) -> EngineCore:  # fmt: skip
    model_config, cache_config = config.model_config, config.cache_config
    weights = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
    longest, seed = model_config.max_model_len, model_config.seed
    model = build_model(hf_config, longest, dtype, device, weights, seed=seed, ops=chosen.ops, group=group)
    draft = load_draft(config, model, dtype, device)
    if isinstance(draft, EagleHead) and group is not None:
        raise ValueError(f"tensor_parallel_size must be 1 with a head that reads the model, got {group.world_size}")
    token_bytes = kv_bytes_per_token(model.decoder_spec, chosen.cache_dtype)
    if draft is not None:
        token_bytes += kv_bytes_per_token(draft.decoder_spec, dtype)
    speculative = config.speculative_config
    most = 0 if speculative is None else speculative.num_speculative_tokens
    most_rows = limits.max_num_seqs * (1 + most)  # of a step of decodes: each has its last token and draft tokens
    size = size_cache(config, model, chosen, limits, most_rows, token_bytes, dtype, device)
    if group is not None:
        fewest = group.fewest([size.num_blocks, size.num_swap_blocks])
        size = dataclasses.replace(size, num_blocks=fewest[0], num_swap_blocks=fewest[1])
    limits = _within_cache(limits, size)
    kv = KVCacheManager(
        size.num_blocks, size.block_size, size.num_swap_blocks,
        enable_prefix_caching=cache_config.enable_prefix_caching,
    )  # fmt: skip
    proposer = make_proposer(config, model, draft, size, dtype, device)
    runner = _make_runner(config, model, chosen, limits, most_rows, size, dtype, device, eos_token_ids, proposer, group)
    run_ahead = device.type == "cuda" if limits.async_scheduling is None else limits.async_scheduling
    draft_length = None
    if proposer is not None:
        draft_length = DraftLength(most, step_costs(model, draft, device, run_ahead=run_ahead))
    scheduler = Scheduler(limits, kv, eos_token_ids, draft_length)
    config = dataclasses.replace(
        config, scheduler_config=limits,
        model_config=dataclasses.replace(model_config, max_model_len=limits.max_model_len),
        cache_config=dataclasses.replace(cache_config, num_kv_blocks=size.num_blocks),
    )  # fmt: skip
    return EngineCore(scheduler, runner, config, size, run_ahead=run_ahead)


def size_cache(
    config: EngineConfig, model: DecoderForCausalLM, chosen: Components, limits: SchedulerConfig, most_rows: int,
    token_bytes: int, dtype: torch.dtype, device: torch.device,
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
            model, chosen.backend, capture_sizes(most_rows), max_model_len=limits.max_model_len,
            block_size=block_size, dtype=dtype, device=device, draws=chosen.draws, cache_dtype=chosen.cache_dtype,
        )  # fmt: skip

    sharing = config.parallel_config.tensor_parallel_size
    size = size_kv_cache(token_bytes, config.cache_config, limits, device, measure_step, sharing)
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
    config: EngineConfig, model: DecoderForCausalLM, chosen: Components, limits: SchedulerConfig, most_rows: int,
    size: CacheSize, dtype: torch.dtype, device: torch.device, eos_token_ids: frozenset[int],
    proposer: Proposer | None, group: GroupCoordinator | None,
) -> ModelRunner:  # fmt: skip
    """The runner, with everything compiled and recorded that would make a first request wait."""
    longest, block_size = limits.max_model_len, size.block_size
    speculative = config.speculative_config
    rejects = speculative is not None and speculative.rejection_sample_method == "probabilistic"
    kv_cache = KVCache(  # and the null block
        model, chosen.backend, num_blocks=size.num_blocks + 1, block_size=block_size, dtype=chosen.cache_dtype,
        device=device,
    )  # fmt: skip
    sampling = chosen.sampler(model.decoder_spec.vocab_size, eos_token_ids, device, uses_kernel=chosen.draws)
    if device.type == "cuda":
        kv_cache.backend.warm_up(kv_cache.tensors[0], dtype)
        sampling.warm_up(dtype)
    graphs = record_graphs(model, chosen, most_rows, longest, block_size, dtype, device)
    leading: Any = model if group is None else LeadingModel(model, group)
    replayed: Any = graphs if group is None or graphs is None else LeadingGraphs(graphs, group)
    return ModelRunner(
        leading, kv_cache, sampling, replayed, num_swap_blocks=size.num_swap_blocks, max_num_seqs=limits.max_num_seqs,
        max_model_len=longest, device=device, proposer=proposer, rejects=rejects, group=group,
    )  # fmt: skip


def record_graphs(
    model: DecoderForCausalLM, chosen: Components, most_rows: int, longest: int, block_size: int, dtype: torch.dtype,
    device: torch.device,
) -> CudaGraphs | None:  # fmt: skip
    """All that steps of up to `most_rows` tokens need; None: these components have none."""
    if not chosen.graphs:
        return None
    sizes = capture_sizes(most_rows)
    graphs = CudaGraphs(
        model, sizes, max_model_len=longest, block_size=block_size, dtype=dtype, device=device, draws=chosen.draws
    )
    logger.info("CUDA graphs for %d batch sizes up to %d: %.2f GiB", len(sizes), sizes[-1], graphs.pool_bytes / 2**30)
    return graphs
