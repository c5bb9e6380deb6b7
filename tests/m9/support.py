"""Groups of ranks for M9's tests, in threads of this process: over sockets and memory, as processes have them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import Any

import pytest
import torch
import torch.distributed as dist

from folovllm.config import EngineConfig, ModelConfig, ParallelConfig
from folovllm.distributed.collectives import memory_bytes
from folovllm.distributed.parallel_state import GroupCoordinator, Peer, join
from folovllm.utils.cpu_kernels import unavailable_reason

CPU = torch.device("cpu")
MEMORY = pytest.mark.skipif(unavailable_reason() is not None, reason="the kernels cannot run here")
KINDS = ["gloo", pytest.param("memory", marks=MEMORY)]
GUARD = 600


class RankThread:
    """As subprocess.Popen, as far as Peer asks."""

    def __init__(self, target: Callable[..., Any], *args: Any) -> None:
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(target, *args), daemon=True)
        self.thread.start()

    def _run(self, target: Callable[..., Any], *args: Any) -> None:
        try:
            target(*args)
        except BaseException as error:
            self.error = error

    def wait(self, timeout: float | None = None) -> int:
        self.thread.join(GUARD)
        return 0 if self.error is None else 1

    def kill(self) -> None:
        self.thread.join(GUARD)  # it ends when rank 0 has gone


def links_of(size: int) -> list[dict[int, Peer]]:
    """Each rank's, in this process."""
    pairs = {rank: socket.socketpair() for rank in range(1, size)}
    return [
        {rank: Peer(ours) for rank, (ours, _) in pairs.items()},
        *({0: Peer(theirs)} for _, theirs in pairs.values()),
    ]


def group_of(kind: str, size: int, timeout: int = GUARD) -> list[GroupCoordinator]:
    """Each rank's, in this process."""
    links, config = links_of(size), EngineConfig(
        ModelConfig("embedded"), parallel_config=ParallelConfig(size, distributed_timeout_seconds=timeout))  # fmt: skip
    if kind == "memory":
        memory = TemporaryFile()  # noqa: SIM115
        memory.truncate(memory_bytes(size))
        shared: list[Any] = [memory] * size
    else:
        shared = [dist.HashStore()] * size
    return together([lambda rank=rank: join(rank, links[rank], shared[rank], CPU, config) for rank in range(size)])


def together(works: list[Callable[[], Any]]) -> list[Any]:
    """What each of these returns, all at the same time. The first error is raised."""
    results: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        results[number] = works[number]()

    threads = [RankThread(run, number) for number in range(len(works))]
    for thread in threads:
        thread.wait()
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    return results
