"""Any rank but 0: builds its part of the model, then repeats what rank 0's does until that has gone.

    python -m folovllm.engine.follow RANK DESCRIPTOR < config      started by rank 0 (start_ranks.py)
    torchrun --nproc-per-node 2 program.py                         LLM(tensor_parallel_size=2) becomes this in rank 1

vLLM: v1/executor/multiproc_executor.py (WorkerProc)
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from folovllm.config import EngineConfig
from folovllm.distributed.handshake import connect_to_rank_0, follow, start_time
from folovllm.distributed.link import Link
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.engine.budgets import resolve_scheduler_config
from folovllm.engine.build import record_graphs, size_cache
from folovllm.engine.one_thread import threads_for_steps
from folovllm.engine.parts import choose_parts
from folovllm.engine.start_ranks import facts_of, torchrun_rank
from folovllm.errors import EngineDeadError
from folovllm.hf_config import load_hf_config
from folovllm.model_loader import resolve_device, resolve_dtype, resolve_max_model_len
from folovllm.models.weights import build_model, weights_folder
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.follower import Follower
from folovllm.worker.kv_cache import KVCache, kv_bytes_per_token
from folovllm.worker.model_runner import current_device
from folovllm.worker.pinned_mover import PinnedBlockMover


def run_rank(rank: int, link: Link, config: EngineConfig) -> None:
    """All of a rank's life. What ends it early is said to rank 0."""
    try:
        with suppress(EOFError):  # rank 0 has gone
            _run(rank, link, config)
    except EngineDeadError:  # in the middle of a step: rank 0 knows by itself
        pass
    except BaseException as error:
        with suppress(OSError):
            link.send(error=f"{type(error).__name__}: {error}")
        raise
    finally:
        link.close()


def _run(rank: int, link: Link, config: EngineConfig) -> None:
    parallel = config.parallel_config
    size, timeout = parallel.tensor_parallel_size, parallel.distributed_timeout_seconds
    hf_config = load_hf_config(config.model_config)
    config.set_max_model_len(resolve_max_model_len(hf_config, config.model_config.max_model_len))
    in_order = config.model_config.batch_invariant
    group = follow(rank, size, link, facts_of(config), timeout, in_order=in_order)
    if config.model_config.device != "cpu" and torch.cuda.is_available():
        local = int(os.environ.get("LOCAL_RANK", rank))
        config.model_config = replace(config.model_config, device=f"cuda:{local}")
    device = resolve_device(config.model_config)
    with current_device(device):
        follower = build_follower(config, hf_config, device, group)
        with threads_for_steps(config.model_config.model, size)():
            follower.run()


def build_follower(config: EngineConfig, hf_config: Any, device: torch.device, group: GroupCoordinator) -> Follower:
    """As build_engine_core() builds rank 0's, in the same order: both join in what all ranks do together."""
    model_config, speculative = config.model_config, config.speculative_config
    dtype, longest = resolve_dtype(model_config, hf_config, device), model_config.max_model_len
    limits = resolve_scheduler_config(config.scheduler_config, longest, device.type)
    parts = replace(choose_parts(config, hf_config, dtype, device), draws=False)
    weights = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
    model = build_model(
        hf_config, longest, dtype, device, weights, seed=model_config.seed, ops=parts.ops, group=group
    )
    most_rows = limits.max_num_seqs * (1 + (speculative.num_speculative_tokens if speculative else 0))
    token_bytes = kv_bytes_per_token(model.decoder_spec, parts.cache_dtype)
    size = size_cache(config, model, parts, limits, most_rows, token_bytes, dtype, device)
    link = group.links[0]
    link.send(blocks=[size.num_blocks, size.num_swap_blocks])
    timeout = config.parallel_config.distributed_timeout_seconds
    num_blocks, num_swap_blocks = link.receive(start_time(timeout))["blocks"]
    kv_cache = KVCache(
        model, parts.backend, num_blocks=num_blocks + 1, block_size=size.block_size, dtype=parts.cache_dtype,
        device=device,
    )  # fmt: skip
    if device.type == "cuda":
        kv_cache.backend.warm_up(kv_cache.tensors[0], dtype)
    longest = min(longest, num_blocks * size.block_size)
    graphs = record_graphs(model, parts, most_rows, longest, size.block_size, dtype, device)
    mover = PinnedBlockMover if device.type == "cuda" else BlockMover
    return Follower(model, mover(kv_cache, num_swap_blocks), graphs, group, device)


def follow_under_torchrun(config: EngineConfig) -> None:
    """Nothing in rank 0, and where there is no torchrun. In another rank, all that its process is for: it ends when
    rank 0 has gone."""
    if rank := torchrun_rank(config):
        parallel = config.parallel_config
        run_rank(
            rank, connect_to_rank_0(rank, parallel.tensor_parallel_size, parallel.distributed_timeout_seconds), config
        )
        sys.exit(0)


def main() -> None:
    rank, descriptor = map(int, sys.argv[1:])
    run_rank(rank, Link(socket.socket(fileno=descriptor)), pickle.load(sys.stdin.buffer))


if __name__ == "__main__":
    main()
