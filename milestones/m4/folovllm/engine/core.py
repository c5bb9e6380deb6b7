"""The engine below the text: the model, its KV cache, the scheduler and the runner, made to fit one another.

What depends on what: the weights decide how much memory is left, that decides the number of blocks, and that how long a
sequence can get, which the scheduler and whoever checks requests must know.

vLLM: v1/engine/core.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from folovllm.attention.backend import select_backend
from folovllm.config import EngineConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.engine.limits import resolve_scheduler_config
from folovllm.engine.room import Room
from folovllm.engine.stepper import Stepper
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.fused_cpu import can_fuse_cpu, fuse_cpu
from folovllm.models.packing import pack_in_threads, widen_activations
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.logging import init_logger
from folovllm.worker.cuda_graph import CudaGraphs, capture_sizes
from folovllm.worker.kv_cache import kv_bytes_per_token
from folovllm.worker.memory import size_kv_cache
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.profile import peak_bytes_of_full_step

logger = init_logger(__name__)


class EngineCore:
    """Args:
    config: with max_model_len filled in.

    Raises:
        ValueError: no block fits into memory, or the configuration's parts contradict one another.
    """

    def __init__(
        self,
        config: EngineConfig,
        hf_config: Any,
        dtype: torch.dtype,
        device: torch.device,
        eos_token_ids: frozenset[int],
    ) -> None:
        model_config, cache_config = config.model_config, config.cache_config
        assert model_config.max_model_len is not None
        # What can be refused is refused before the weights are read.
        limits = resolve_scheduler_config(config.scheduler_config, model_config.max_model_len)
        backend = select_backend(model_config.attention_backend, device)
        if not backend.reads_block_tables and cache_config.block_size < model_config.max_model_len:
            raise ValueError(
                f"attention_backend {backend.name!r} reads a sequence from one block: it needs a block_size of at "
                f"least max_model_len ({model_config.max_model_len}), got {cache_config.block_size}"
            )
        weights: Path | None = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
        model = build_model(
            hf_config, model_config.max_model_len, dtype, device, weights, seed=model_config.seed
        )
        _make_fast(model, device)
        self.cache_size = size_kv_cache(
            kv_bytes_per_token(model.decoder_spec, dtype),
            cache_config,
            limits,
            device,
            lambda: peak_bytes_of_full_step(
                model, backend, cache_config.block_size, limits, dtype=dtype, device=device
            ),
        )
        logger.info("KV cache: %s", self.cache_size)
        # What does not fit into the whole cache can never be served.
        self.max_model_len = min(model_config.max_model_len, self.cache_size.num_tokens)
        if self.max_model_len < model_config.max_model_len:
            logger.warning(
                "sequences end at %d tokens instead of max_model_len=%d: the KV cache holds no more",
                self.max_model_len, model_config.max_model_len,
            )  # fmt: skip
        self.limits = dataclasses.replace(limits, max_model_len=self.max_model_len)
        self.kv = KVCacheManager(
            self.cache_size.num_blocks, cache_config.block_size, self.cache_size.num_swap_blocks
        )
        self.scheduler = Scheduler(self.limits, self.kv, eos_token_ids)
        self.room = Room(
            self.max_model_len, self.cache_size.num_blocks, cache_config.block_size, self.scheduler.max_num_seqs
        )
        self.runner = ModelRunner(
            model,
            backend,
            num_blocks=self.cache_size.num_blocks,
            num_swap_blocks=self.cache_size.num_swap_blocks,
            block_size=cache_config.block_size,
            max_num_seqs=self.scheduler.max_num_seqs,
            max_model_len=self.max_model_len,
            dtype=dtype,
            device=device,
            eos_token_ids=eos_token_ids,
        )
        if device.type == "cuda" and backend.supports_cuda_graphs and not model_config.enforce_eager:
            self.runner.graphs = CudaGraphs(
                model,
                capture_sizes(self.scheduler.max_num_seqs),
                max_model_len=self.max_model_len,
                block_size=cache_config.block_size,
                device=device,
            )
        run_ahead = limits.async_scheduling
        self.stepper = Stepper(
            self.scheduler, self.runner, run_ahead=device.type == "cuda" if run_ahead is None else run_ahead
        )


def _make_fast(model: DecoderForCausalLM, device: torch.device) -> None:
    """Fewer and cheaper operations between the products, and weights in the layout that the products want."""
    if device.type == "cuda":
        from folovllm.models.fused import can_fuse, fuse  # loads Triton

        if can_fuse(device) is None:
            fuse(model)
    else:
        widen_activations(model)
        if can_fuse_cpu(model) is None:
            fuse_cpu(model)
        pack_in_threads(model)
