"""Rank 0 starts the other ranks, or meets them where torchrun has started them, before it reads its weights.

vLLM: v1/executor/multiproc_executor.py, v1/executor/abstract.py
"""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from folovllm import __version__
from folovllm.config import EngineConfig
from folovllm.distributed.handshake import Facts, accept_ranks, hear, lead, start_time
from folovllm.distributed.link import Link, Process
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.layers.linear import LinearMethod
from folovllm.model_files import resolve_model_path
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
    config: EngineConfig, spec: DecoderSpec, linear: LinearMethod, device: torch.device
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
    facts = facts_of(config)
    if torchrun_rank(config) is not None:
        links = accept_ranks(size, timeout)
    else:
        if device.type == "cuda" and (count := torch.cuda.device_count()) < size:
            raise wrong("tensor_parallel_size", f"be at most {count}, the GPUs of this machine", size)
        links = {rank: _start(rank, config) for rank in range(1, size)}
    return lead(links, facts, device, timeout, in_order=config.model_config.batch_invariant)


def facts_of(config: EngineConfig) -> Facts:
    """What must be alike on all ranks, beside the model's folder, which may be at another place on each."""
    model_config, digest = config.model_config, hashlib.sha256()
    folder = Path(resolve_model_path(model_config.model, weights=False))
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]) if folder.is_dir() else ():
        with path.open("rb") as file:
            digest.update(f"{path.name} {path.stat().st_size}".encode() + file.read(BEGINNING))
    options = replace(config, model_config=replace(model_config, model="-", tokenizer="-", device=None))
    return {
        "version of folovllm": __version__,
        "version of torch": torch.__version__,
        "model": digest.hexdigest()[:16],
        "options": hashlib.sha256(repr(options).encode()).hexdigest()[:16],
    }


def smallest_cache(group: GroupCoordinator, size: CacheSize) -> CacheSize:
    """Rank 0's `size`, with as many blocks as the rank that has the fewest. All ranks learn it."""
    sizes = [size.num_blocks, size.num_swap_blocks]
    timeout = start_time(30)
    theirs = [hear(rank, link, timeout)["blocks"] for rank, link in group.links.items()]
    num_blocks, num_swap_blocks = (min(counts) for counts in zip(sizes, *theirs, strict=True))
    for link in group.links.values():
        link.send(blocks=[num_blocks, num_swap_blocks])
    return replace(size, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks)


def _start(rank: int, config: EngineConfig) -> Link:
    ours, theirs = socket.socketpair()
    process = start_process(rank, theirs, config)
    theirs.close()
    return Link(ours, process)


def start_process(rank: int, connection: socket.socket, config: EngineConfig) -> Process:
    """A process of its own, not a fork: torch's threads and CUDA do not live on in one. A program's own file is not
    read again in it, as multiprocessing would do."""
    command = [sys.executable, "-m", "folovllm.engine.follow", str(rank), str(connection.fileno())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, pass_fds=[connection.fileno()], env=environment, start_new_session=True
    )
    assert process.stdin is not None  # for the type checker
    with suppress(BrokenPipeError), process.stdin:  # it has ended already, as its socket will tell
        process.stdin.write(pickle.dumps(config))
    return process
