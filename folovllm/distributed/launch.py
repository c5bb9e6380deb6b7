"""How the ranks come together: rank 0 starts a process for each, or torchrun has.

What rank 0 shares with the processes that it starts has no name in any folder, and is gone when they are: a pair of
sockets for each, and memory, or a store of torch.distributed on the loopback. Under torchrun it listens at MASTER_ADDR.

vLLM: v1/executor/multiproc_executor.py, distributed/utils.py (StatelessProcessGroup)
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from folovllm.config import EngineConfig
from folovllm.distributed.collectives import Collectives, SharedMemory, TorchCollectives, memory_bytes
from folovllm.distributed.link import Link
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.errors import EngineDeadError
from folovllm.utils.cpu_kernels import unavailable_reason

PATIENCE = 10
"""Times distributed_timeout_seconds, for what takes long at the start: imports, weights."""


def start_processes(size: int, device: torch.device, timeout: int, config: object) -> tuple[dict[int, Link], Any]:
    """A link to each of the other ranks, which get `config`; and what join() takes."""
    memory, port = None, 0
    shared: Any
    if device.type == "cpu" and unavailable_reason() is None:
        shared = memory = os.memfd_create("folovllm-ranks")
        os.ftruncate(memory, memory_bytes(size))
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        shared = store_at(port, size, timeout, is_master=True, master_listen_fd=listener.detach())
    links = {}
    for rank in range(1, size):
        ours, theirs = socket.socketpair()
        links[rank] = Link(ours, start_process(rank, theirs, memory, port, config))
        theirs.close()
    return links, shared


def start_process(
    rank: int, connection: socket.socket, memory: int | None, port: int, config: object
) -> subprocess.Popen[bytes]:
    """Not a fork: torch's threads and CUDA do not live on in one. Nor multiprocessing's spawn, which reads a program's
    own file again. A terminal's Ctrl-C does not reach it."""
    shared = [connection.fileno(), *([] if memory is None else [memory])]
    process = subprocess.Popen(
        [sys.executable, "-m", "folovllm.engine.ranks"], stdin=subprocess.PIPE, pass_fds=shared,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None  # for the type checker
    with suppress(BrokenPipeError), process.stdin:  # it has ended already, as its socket will tell
        process.stdin.write(pickle.dumps((rank, connection.fileno(), memory, port, config)))
    return process


def store_at(port: int, size: int, timeout: int, **more: Any) -> dist.Store:
    waits = timedelta(seconds=timeout * PATIENCE)
    return dist.TCPStore("127.0.0.1", port, size, wait_for_workers=False, timeout=waits, **more)


def meet_under_torchrun(rank: int, size: int, timeout: int) -> tuple[dict[int, Link], dist.Store]:
    """Links as GroupCoordinator has them, and torchrun's store. Raises EngineDeadError: a rank does not come."""
    store = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout * PATIENCE)))[0]
    address, key, links = os.environ["MASTER_ADDR"], "folovllm/port", {}
    if rank:
        links[0] = Link(socket.create_connection((address, int(store.get(key)))))
        links[0].send(rank)
        return links, store
    with socket.create_server((address, 0)) as listener:
        store.set(key, str(listener.getsockname()[1]))
        listener.settimeout(timeout * PATIENCE)
        while len(links) < size - 1:
            try:
                link = Link(listener.accept()[0])
            except TimeoutError:
                missing = min({*range(1, size)} - links.keys())
                raise EngineDeadError(f"rank {missing} of {size} did not come") from None
            links[int(link.receive(timeout))] = link
    return links, store


def join(
    rank: int, links: dict[int, Link], shared: Any, device: torch.device, config: EngineConfig
) -> GroupCoordinator:
    """When all are there. shared: a file in memory, or a store of torch.distributed."""
    size, timeout = config.parallel_config.tensor_parallel_size, config.parallel_config.distributed_timeout_seconds
    connections = [link.connection for link in links.values()]
    in_order = device.type == "cpu" or config.model_config.batch_invariant
    if isinstance(shared, int):
        collectives: Collectives = SharedMemory(rank, size, shared, [each.fileno() for each in connections], timeout)
        os.close(shared)
    else:
        kind: Any = dist.ProcessGroupNCCL if device.type == "cuda" else dist.ProcessGroupGloo
        options = kind.Options() if device.type == "cuda" else kind._Options()
        options._timeout = timedelta(seconds=timeout)
        if device.type == "cpu":  # at the address that leads to the other ranks: the loopback, if they are here
            address = connections[0].getsockname()
            options._devices = [kind.create_device(hostname=address[0] if address else "127.0.0.1")]
        collectives = TorchCollectives(rank, size, kind(shared, rank, size, options), in_order=in_order)
    return GroupCoordinator(rank, size, links, collectives)
