"""Any rank but 0: builds its part of the model, then repeats what rank 0's does until that has gone.

    python -m folovllm.engine.follow         started by rank 0 (distributed/launch.py)
    torchrun --nproc-per-node 2 program.py   LLM(tensor_parallel_size=2) becomes this in rank 1

vLLM: v1/executor/multiproc_executor.py (WorkerProc)
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from folovllm.config import EngineConfig
from folovllm.distributed.launch import PATIENCE, join, meet_under_torchrun, store_of
from folovllm.distributed.link import Link
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.engine.budgets import resolve_scheduler_config
from folovllm.engine.build import record_graphs, size_cache
from folovllm.engine.one_thread import threads_for_steps
from folovllm.engine.parts import choose_parts
from folovllm.engine.start_ranks import facts_of, torchrun_rank
from folovllm.hf_config import load_hf_config
from folovllm.model_loader import resolve_device, resolve_dtype, resolve_max_model_len
from folovllm.models.weights import build_model, weights_folder
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.follower import Follower
from folovllm.worker.kv_cache import KVCache, kv_bytes_per_token
from folovllm.worker.model_runner import current_device
from folovllm.worker.pinned_mover import PinnedBlockMover


def run_rank(rank: int, link: Link, shared: Any, config: EngineConfig) -> None:
    """All of a rank's life. shared: as join() takes it. What ends it early is said to rank 0."""
    try:
        _run(rank, link, shared, config)
    except BaseException as error:
        if not link.is_closed():  # else rank 0 has gone: the usual end
            link.send({"error": f"{type(error).__name__}: {error}"})
            raise
    finally:
        link.close()


def _run(rank: int, link: Link, shared: Any, config: EngineConfig) -> None:
    size, timeout = config.parallel_config.tensor_parallel_size, config.parallel_config.distributed_timeout_seconds
    if config.model_config.device != "cpu" and torch.cuda.is_available():
        local = int(os.environ.get("LOCAL_RANK", rank))
        config.model_config = replace(config.model_config, device=f"cuda:{local}")
    hf_config, device = load_hf_config(config.model_config), resolve_device(config.model_config)
    config.set_max_model_len(resolve_max_model_len(hf_config, config.model_config.max_model_len))
    weights = None if config.model_config.load_format == "dummy" else weights_folder(config.model_config.model)
    link.send(facts_of(config, weights))
    link.receive(timeout * PATIENCE)
    in_order = config.model_config.batch_invariant
    collectives = join(rank, size, {0: link}, shared, device, timeout, in_order=in_order)
    group = GroupCoordinator(rank, size, {0: link}, collectives)
    with current_device(device), threads_for_steps(config.model_config.model, size)():
        build_follower(config, hf_config, weights, device, group).run()


def build_follower(
    config: EngineConfig, hf_config: Any, weights: Path | None, device: torch.device, group: GroupCoordinator
) -> Follower:
    """As build_engine_core() builds rank 0's, in the same order: both join in what all ranks do together."""
    model_config, speculative = config.model_config, config.speculative_config
    dtype, longest = resolve_dtype(model_config, hf_config, device), model_config.max_model_len
    limits = resolve_scheduler_config(config.scheduler_config, longest, device.type)
    parts = replace(choose_parts(config, hf_config, dtype, device), draws=False)
    seed = model_config.seed
    model = build_model(hf_config, longest, dtype, device, weights, seed=seed, ops=parts.ops, group=group)
    most_rows = limits.max_num_seqs * (1 + (speculative.num_speculative_tokens if speculative else 0))
    token_bytes = kv_bytes_per_token(model.decoder_spec, parts.cache_dtype)
    size = size_cache(config, model, parts, limits, most_rows, token_bytes, dtype, device)
    group.links[0].send([size.num_blocks, size.num_swap_blocks])
    num_blocks, num_swap_blocks = group.links[0].receive()
    block_size, cache_dtype = size.block_size, parts.cache_dtype
    kv_cache = KVCache(
        model, parts.backend, num_blocks=num_blocks + 1, block_size=block_size, dtype=cache_dtype, device=device
    )
    if device.type == "cuda":
        kv_cache.backend.warm_up(kv_cache.tensors[0], dtype)
    graphs = record_graphs(model, parts, most_rows, min(longest, num_blocks * block_size), block_size, dtype, device)
    mover = PinnedBlockMover if device.type == "cuda" else BlockMover
    return Follower(model, mover(kv_cache, num_swap_blocks), graphs, group, device)


def follow_under_torchrun(config: EngineConfig) -> None:
    """Nothing in rank 0, and where there is no torchrun. In another rank, all that its process is for: it ends when
    rank 0 has gone."""
    if rank := torchrun_rank(config):
        parallel = config.parallel_config
        size, timeout = parallel.tensor_parallel_size, parallel.distributed_timeout_seconds
        links, store = meet_under_torchrun(rank, size, timeout)
        run_rank(rank, links[0], store, replace(config))
        sys.exit(0)


def main() -> None:
    rank, descriptor, memory, port, config = pickle.load(sys.stdin.buffer)
    link, parallel = Link(socket.socket(fileno=descriptor)), config.parallel_config
    size, timeout = parallel.tensor_parallel_size, parallel.distributed_timeout_seconds
    run_rank(rank, link, store_of(port, size, timeout) if memory is None else memory, config)


if __name__ == "__main__":
    main()
