"""Builds an EngineCore: the model, its KV cache, the scheduler and the runner, made to fit one another.

What depends on what: the weights decide how much memory is left, that decides the number of blocks, and that how long a
sequence can get, which the scheduler and the check of new requests must know.

vLLM: v1/engine/core.py (EngineCore.__init__, _initialize_kv_caches)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import torch

from folovllm.config import EngineConfig, SchedulerConfig
from folovllm.core.draft_length import DraftLength
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.engine.builder.budgets import resolve_scheduler_config
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.builder.kernel_check import check_kernels
from folovllm.engine.builder.proposer import Draft, load_draft, make_proposer, step_costs
from folovllm.engine.core import EngineCore
from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.quant_scheme import ONLINE
from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec
from folovllm.models.eagle import EagleHead
from folovllm.models.lora import LoRALayers
from folovllm.models.registry import ModelSpec, model_spec
from folovllm.models.shard import shard_of
from folovllm.models.transformers_model import TransformersSpec, load_transformers_model
from folovllm.models.weights import build_model, read_pooler_head, weights_folder
from folovllm.spec_decode.draft_graphs import DraftGraphs, draft_sizes
from folovllm.speculative_config import SpeculativeConfig
from folovllm.utils.logging import init_logger
from folovllm.worker.cuda_graph import FEWEST_TOKENS, CudaGraphs, bytes_of_graphs, bytes_over_null_block, capture_sizes
from folovllm.worker.follower import LeadingGraphs, LeadingLoRA, LeadingModel
from folovllm.worker.kv_cache import KVCache, kv_bytes_per_token, kv_cache_groups
from folovllm.worker.lora import LoRASlots
from folovllm.worker.memory import CacheSize, size_kv_cache
from folovllm.worker.model_runner import ModelRunner, current_device
from folovllm.worker.pooler import Pooler
from folovllm.worker.profile import peak_bytes, run_full_step
from folovllm.worker.prompt_shape import PromptShape, draft_shapes, prompt_shapes
from folovllm.worker.proposer import Proposer

logger = init_logger(__name__)


def build_engine_core(
    config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device, eos_token_ids: frozenset[int],
    *, choose: Callable[..., Components] = choose_components, group: GroupCoordinator | None = None,
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
        budgets_of = "cuda" if device.type == "cuda" else "cpu"
        limits = resolve_scheduler_config(config.scheduler_config, model_config.max_model_len, budgets_of)
        spec = model_spec(model_config.model_impl, hf_config, model_config.max_model_len)
        chosen = choose(config, hf_config, dtype, device, spec)
        chosen = check_kernels(chosen, config, spec, dtype, device, group)
        if config.pooler_config is not None and config.speculative_config is not None:
            raise ValueError("speculative_config must be None for a model that pools: it draws no tokens to guess")
        model = _load_model(config, hf_config, spec, dtype, device, chosen, group)
        lora = lora_layers(config, spec, model, dtype, device, chosen, group)
        core = _build(config, model, dtype, device, eos_token_ids, limits, chosen, group, lora)
        undo.pop_all()
        return core


def _build(
    config: EngineConfig, model: DecoderForCausalLM, dtype: torch.dtype, device: torch.device,
    eos_token_ids: frozenset[int], limits: SchedulerConfig, chosen: Components, group: GroupCoordinator | None,
    lora: LoRALayers | None,
) -> EngineCore:  # fmt: skip
    model_config, cache_config = config.model_config, config.cache_config
    draft = load_draft(config, model, chosen, dtype, device)
    if draft is not None and isinstance(draft.model, EagleHead) and group is not None:
        raise ValueError(f"tensor_parallel_size must be 1 with a head that reads the model, got {group.world_size}")
    groups = kv_cache_groups(
        model.decoder_spec, limits, cache_config.block_size, one_table=group is not None, has_draft=draft is not None
    )
    token_bytes = kv_bytes_per_token(model.decoder_spec, chosen.cache_dtype, groups)
    if draft is not None:
        token_bytes += kv_bytes_per_token(draft.model.decoder_spec, dtype)
    speculative = config.speculative_config
    most = 0 if speculative is None else speculative.num_speculative_tokens
    most_rows = limits.max_num_seqs * (1 + most)  # of a step of decodes: each has its last token and draft tokens
    # Among ranks, one may ask the device while another records.
    alone = draft if group is None and draft is not None and isinstance(draft.model, DecoderForCausalLM) else None
    record = _draft_graphs(alone, chosen, limits, most, cache_config.block_size, dtype, device)
    size = size_cache(config, model, chosen, limits, most_rows, token_bytes, dtype, device, groups, alone, record)
    if group is not None:
        fewest = group.fewest([size.num_blocks, size.num_swap_blocks])
        size = dataclasses.replace(size, num_blocks=fewest[0], num_swap_blocks=fewest[1])
    limits = _within_cache(limits, size)
    record = _draft_graphs(alone, chosen, limits, most, size.block_size, dtype, device)  # for sequences that fit
    kv = KVCacheManager(
        size.num_blocks, size.block_size, size.num_swap_blocks,
        enable_prefix_caching=cache_config.enable_prefix_caching, groups=groups,
    )  # fmt: skip
    proposer = make_proposer(config, model, draft, size, dtype, device, record)
    runner = _make_runner(
        config, model, chosen, limits, most_rows, size, dtype, device, eos_token_ids, proposer, group, lora
    )
    run_ahead = device.type == "cuda" if limits.async_scheduling is None else limits.async_scheduling
    draft_length = None
    if proposer is not None:
        draft_length = DraftLength(most, step_costs(model, draft, device, run_ahead=run_ahead))
    scheduler = Scheduler(limits, kv, eos_token_ids, draft_length, config.lora_config.max_loras)
    config = dataclasses.replace(
        config, scheduler_config=limits, kv_cache_groups=groups,
        model_config=dataclasses.replace(model_config, max_model_len=limits.max_model_len),
        cache_config=dataclasses.replace(cache_config, kv_cache_memory_bytes=None, num_kv_blocks=size.num_blocks),
    )  # fmt: skip
    return EngineCore(scheduler, runner, config, size, run_ahead=run_ahead)


def _load_model(
    config: EngineConfig, hf_config: Any, spec: ModelSpec, dtype: torch.dtype, device: torch.device, chosen: Components,
    group: GroupCoordinator | None,
) -> DecoderForCausalLM:  # fmt: skip
    model_config, longest = config.model_config, config.model_config.max_model_len
    if isinstance(spec, TransformersSpec):  # the worker asks it what it asks our decoder
        linear = chosen.ops.linear
        return cast(DecoderForCausalLM, load_transformers_model(model_config, spec, longest, dtype, device, linear))
    if model_config.quantization in ONLINE and getattr(hf_config, "quantization_config", None):
        logger.warning("%s: weights are widened and rounded anew, to %s", model_config.model, model_config.quantization)
    weights = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
    seed = model_config.seed
    return build_model(hf_config, longest, dtype, device, weights, seed=seed, ops=chosen.ops, group=group)


def lora_layers(
    config: EngineConfig, spec: ModelSpec, model: DecoderForCausalLM, dtype: torch.dtype, device: torch.device,
    chosen: Components, group: GroupCoordinator | None,
) -> LoRALayers | None:  # fmt: skip
    """Room for the adapters, before the cache takes what is left of memory. None: requests name none."""
    lora = config.lora_config
    if not lora.enable_lora:
        return None
    assert isinstance(spec, DecoderSpec)  # choose_components() has refused others
    shard = None if group is None else shard_of(spec, chosen.ops.linear, group.rank, group.world_size)
    return LoRALayers(model, chosen.lora, lora.max_loras, lora.max_lora_rank, dtype, device, shard)


def size_cache(
    config: EngineConfig, model: DecoderForCausalLM, chosen: Components, limits: SchedulerConfig, most_rows: int,
    token_bytes: int, dtype: torch.dtype, device: torch.device, groups: KVCacheGroups,
    draft: Draft | None = None, record_draft: Callable[[], DraftGraphs] | None = None,
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
        if draft is not None and record_draft is not None:
            step += bytes_over_null_block(*draft, record_draft, block_size=block_size, dtype=dtype, device=device)
        return step + bytes_of_graphs(
            model, chosen.backend, capture_sizes(most_rows), max_model_len=limits.max_model_len,
            block_size=block_size, dtype=dtype, device=device, draws=chosen.draws, cache_dtype=chosen.cache_dtype,
            prompt_shapes=shapes_of_steps(chosen, limits, model, config.speculative_config), groups=groups,
        )  # fmt: skip

    cache = config.cache_config
    if (memory := cache.kv_cache_memory_bytes) is not None:
        if (num_blocks := memory // (token_bytes * block_size)) < (fewest := len(groups.windows)):
            raise ValueError(
                f"kv_cache_memory_bytes must hold a block, got {memory}: {block_size} tokens take "
                f"{token_bytes * block_size * fewest} bytes; raise it, or lower block_size"
            )
        cache = dataclasses.replace(cache, kv_cache_memory_bytes=None, num_kv_blocks=num_blocks)
    sharing = config.parallel_config.tensor_parallel_size
    size = size_kv_cache(token_bytes, cache, limits, device, measure_step, sharing, groups)
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
    proposer: Proposer | None, group: GroupCoordinator | None, lora: LoRALayers | None,
) -> ModelRunner:  # fmt: skip
    """The runner, with everything compiled and recorded that would make a first request wait."""
    longest, block_size = limits.max_model_len, size.block_size
    speculative = config.speculative_config
    rejects = speculative is not None and speculative.rejection_sample_method == "probabilistic"
    kv_cache = KVCache(  # and the null block
        model, chosen.backend, num_blocks=size.num_blocks + 1, block_size=block_size, dtype=chosen.cache_dtype,
        device=device, groups=size.groups,
    )  # fmt: skip
    draws_on = torch.device("cpu") if device.type == "mps" else device  # the sampler's float64 is missing there
    sampling = chosen.sampler(model.decoder_spec.vocab_size, eos_token_ids, draws_on, uses_kernel=chosen.draws)
    if device.type == "cuda":
        kv_cache.warm_up(dtype)
        model.model.ops.warm_up(model)
        sampling.warm_up(dtype)
    shapes = shapes_of_steps(chosen, limits, model, speculative)
    graphs = record_graphs(model, chosen, most_rows, longest, block_size, dtype, device, shapes)
    leading: Any = model if group is None else LeadingModel(model, group)
    replayed: Any = graphs if group is None or graphs is None else LeadingGraphs(graphs, group)
    return chosen.runner(
        leading, kv_cache, sampling, replayed, num_swap_blocks=size.num_swap_blocks, max_num_seqs=limits.max_num_seqs,
        max_model_len=longest, device=device, proposer=proposer, rejects=rejects, group=group,
        pooler=make_pooler(config, device),
        lora=None if lora is None else LoRASlots(LeadingLoRA(lora, group).put, config.lora_config.max_loras),
    )  # fmt: skip


def make_pooler(config: EngineConfig, device: torch.device) -> Pooler | None:
    """None: the model draws tokens."""
    if (pooler := config.pooler_config) is None:
        return None
    head = None
    if pooler.task == "classify" and config.model_config.load_format == "dummy":
        head = torch.zeros(pooler.size, load_hf_config(config.model_config).get_text_config().hidden_size)
    elif pooler.task == "classify":
        head = read_pooler_head(weights_folder(config.model_config.model), pooler.token_ids)
    return Pooler(pooler, None if head is None else head.to(device))


def record_graphs(
    model: DecoderForCausalLM, chosen: Components, most_rows: int, longest: int, block_size: int, dtype: torch.dtype,
    device: torch.device, shapes: Sequence[PromptShape] = (),
) -> CudaGraphs | None:  # fmt: skip
    """All that steps of up to `most_rows` tokens need, and steps of these shapes; None: these components have none."""
    if not chosen.graphs:
        return None
    sizes = capture_sizes(most_rows)
    graphs = CudaGraphs(
        model, sizes, max_model_len=longest, block_size=block_size, dtype=dtype, device=device, draws=chosen.draws,
        prompt_shapes=shapes,
    )  # fmt: skip
    logger.info(
        "CUDA graphs for %d batch sizes up to %d, and for prompts and drafts in steps of %d sizes: %.2f GiB",
        len(sizes), sizes[-1], len(shapes), graphs.pool_bytes / 2**30,
    )  # fmt: skip
    return graphs


def shapes_of_steps(
    chosen: Components, limits: SchedulerConfig, model: DecoderForCausalLM, speculative: SpeculativeConfig | None
) -> list[PromptShape]:
    """Of steps with prompts, or with drafts, that are recorded: none among ranks, nor where attention cannot."""
    if not chosen.graphs or not chosen.backend.supports_prompt_graphs or model.model.ops.group is not None:
        return []
    from folovllm.attention.kernels.paged_decode import most_queries  # loads Triton

    assert limits.max_num_batched_tokens is not None  # resolved
    most_tokens = min(limits.max_num_batched_tokens, limits.max_num_seqs * limits.max_model_len)
    shapes = prompt_shapes(most_tokens, limits.max_num_seqs)
    draft_len = 0 if speculative is None else speculative.num_speculative_tokens
    rows = min(most_queries(layer.num_heads // layer.num_kv_heads) for layer in model.attention_layers)
    if 0 < draft_len < rows:
        fewest = FEWEST_TOKENS if model.decoder_spec.experts is None else 1
        shapes += draft_shapes(draft_len, limits.max_num_seqs, fewest)
    return sorted(shapes, key=lambda shape: shape.num_tokens)


def _draft_graphs(
    draft: Draft | None, chosen: Components, limits: SchedulerConfig, most: int, block_size: int, dtype: torch.dtype,
    device: torch.device,
) -> Callable[[], DraftGraphs] | None:  # fmt: skip
    """What records them, when the draft's cache is bound; None: its forwards are launched one by one."""
    if draft is None or not chosen.graphs or not draft.backend.supports_cuda_graphs:
        return None
    return partial(
        DraftGraphs, draft.model, draft_sizes(limits.max_num_seqs), most, max_model_len=limits.max_model_len,
        block_size=block_size, dtype=dtype, device=device,
        prompt_shapes=shapes_of_steps(dataclasses.replace(chosen, backend=draft.backend), limits, draft.model, None),
    )  # fmt: skip
