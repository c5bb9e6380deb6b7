"""Rank 0's side of the start: refuse what cannot be cut, have the other ranks started, and see that they are the same.

vLLM: v1/executor/abstract.py
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import torch

from folovllm import __version__
from folovllm.config import EngineConfig
from folovllm.distributed.launch import PATIENCE, hear, join, meet_under_torchrun, start_processes
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.errors import EngineDeadError
from folovllm.layers.linear import LinearMethod
from folovllm.models.decoder import DecoderSpec
from folovllm.models.shard import shard_of
from folovllm.utils.checks import wrong
from folovllm.worker.memory import CacheSize

BEGINNING = 1 << 20
"""Bytes of a file of weights that are compared between ranks, with its length: its head, and the first weights."""


def torchrun_rank(config: EngineConfig) -> int | None:
    """This process's rank, where torchrun or the like has started one for each; None: there is one process.

    Raises:
        ValueError: tensor_parallel_size, if it is another number than that of the processes.
    """
    size = config.parallel_config.tensor_parallel_size
    if size == 1 or "RANK" not in os.environ:
        return None
    if (processes := int(os.environ["WORLD_SIZE"])) != size:
        raise wrong("tensor_parallel_size", f"be WORLD_SIZE, {processes}, under torchrun", size)
    return int(os.environ["RANK"])


def start_ranks(
    config: EngineConfig, spec: DecoderSpec, linear: LinearMethod, weights: Path | None, device: torch.device
) -> GroupCoordinator | None:
    """The group that computes the model, of which this process is rank 0; None: it computes it alone.

    Raises:
        ValueError: the model, or this machine, cannot be divided so.
        EngineDeadError: a rank has ended, does not come, or is another than this one.
    """
    parallel = config.parallel_config
    size, timeout = parallel.tensor_parallel_size, parallel.distributed_timeout_seconds
    if size == 1:
        return None
    shard_of(spec, linear, 0, size)
    ours = facts_of(config, weights)
    if torchrun_rank(config) is not None:
        links, shared = meet_under_torchrun(0, size, timeout)
    else:
        if device.type == "cuda" and (count := torch.cuda.device_count()) < size:
            raise wrong("tensor_parallel_size", f"be at most {count}, the GPUs of this machine", size)
        links, shared = start_processes(size, device, timeout, config)
    try:
        for rank, link in links.items():
            theirs = hear(rank, link, timeout * PATIENCE)
            for name, value in ours.items():
                if theirs.get(name) != value:
                    must = f"rank {rank} must have the {name} that rank 0 has, {value}"
                    raise EngineDeadError(f"{must}, got {theirs.get(name)}")
        for link in links.values():
            link.send("welcome")
        in_order = config.model_config.batch_invariant
        return GroupCoordinator(0, size, links, join(0, size, links, shared, device, timeout, in_order=in_order))
    except BaseException:
        for link in links.values():
            link.close()
        raise


def facts_of(config: EngineConfig, weights: Path | None) -> dict[str, str]:
    """What must be alike on all ranks. The folder of weights may be at another place on each."""
    model_config, digest = config.model_config, hashlib.sha256()
    for path in () if weights is None else sorted([weights / "config.json", *weights.glob("*.safetensors")]):
        with path.open("rb") as file:
            digest.update(f"{path.name} {path.stat().st_size}".encode() + file.read(BEGINNING))
    options = replace(config, model_config=replace(model_config, model="-", tokenizer="-", device=None))
    return {
        "version": f"{__version__} on torch {torch.__version__}",
        "model": digest.hexdigest()[:16],
        "options": hashlib.sha256(repr(options).encode()).hexdigest()[:16],
    }


def smallest_cache(group: GroupCoordinator, size: CacheSize, timeout: int) -> CacheSize:
    """Rank 0's `size`, with as many blocks as the rank that has the fewest. All ranks learn it."""
    counts = [[size.num_blocks, size.num_swap_blocks]]
    counts += [hear(rank, link, timeout * PATIENCE) for rank, link in group.links.items()]
    fewest = [min(each) for each in zip(*counts, strict=True)]
    for link in group.links.values():
        link.send(fewest)
    return replace(size, num_blocks=fewest[0], num_swap_blocks=fewest[1])
