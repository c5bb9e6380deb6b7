"""Ranks for engines, as threads of this process, which run what a rank's process runs. Only what must be a process is
one.
"""

from __future__ import annotations

import copy
import os
import socket
from typing import Any

import pytest

from folovllm.distributed.parallel_state import Peer
from folovllm.engine import ranks
from folovllm.engine.ranks import run_rank
from tests.m9.support import RankThread


def start_thread(rank: int, connection: socket.socket, memory: int | None, port: int, config: Any) -> RankThread:
    size, timeout = config.parallel_config.tensor_parallel_size, config.parallel_config.distributed_timeout_seconds
    shared = ranks.store_at(port, size, timeout) if memory is None else open(os.dup(memory), "r+b")  # noqa: SIM115
    return RankThread(run_rank, rank, Peer(connection.dup()), shared, copy.deepcopy(config))


@pytest.fixture
def rank_threads(monkeypatch: pytest.MonkeyPatch) -> list[RankThread]:
    """The ranks that the test's engines start are threads. They have come to their end without an error after it."""
    started: list[RankThread] = []

    def start(*args: Any) -> Any:
        started.append(start_thread(*args))
        return started[-1]

    monkeypatch.setattr(ranks, "start_process", start)
    return started
