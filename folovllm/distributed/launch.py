"""How the ranks come together: rank 0 starts a process for each, or torchrun has.

    rank 0                                       the others
    starts them, with a socket for each     ──▶  they have it from birth, and no one else can reach it
    torchrun: listens at MASTER_ADDR        ◀──  connect
    are they what I am?                     ◀──  version, options, digest of the model

What rank 0 shares with the processes that it starts has no name in any folder, and is gone when they are.

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

from folovllm.distributed.collectives import Collectives, SharedMemory, TorchCollectives, memory_bytes
from folovllm.distributed.link import Link
from folovllm.errors import EngineDeadError
from folovllm.utils.cpu_kernels import unavailable_reason

PATIENCE = 10
"""Times distributed_timeout_seconds, for what takes long at the start: imports, weights."""


def start_processes(size: int, device: torch.device, timeout: int, config: object) -> tuple[dict[int, Link], Any]:
    """A link to each of the other ranks, which run follow.py with `config`; and what join() needs."""
    memory = store = None
    port = 0
    if device.type == "cpu" and unavailable_reason() is None:
        memory = os.memfd_create("folovllm-ranks")
        os.ftruncate(memory, memory_bytes(size))
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        store = _store(port, size, timeout, is_master=True, master_listen_fd=listener.detach())
    links = {}
    for rank in range(1, size):
        ours, theirs = socket.socketpair()
        links[rank] = Link(ours, start_process(rank, theirs, memory, port, config))
        theirs.close()
    return links, store if memory is None else memory


def start_process(
    rank: int, connection: socket.socket, memory: int | None, port: int, config: object
) -> subprocess.Popen[bytes]:
    """Not a fork: torch's threads and CUDA do not live on in one. Nor multiprocessing's spawn, which reads a program's
    own file again. A terminal's Ctrl-C does not reach it."""
    shared = [connection.fileno(), *([] if memory is None else [memory])]
    process = subprocess.Popen(
        [sys.executable, "-m", "folovllm.engine.follow"], stdin=subprocess.PIPE, pass_fds=shared,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None  # for the type checker
    with suppress(BrokenPipeError), process.stdin:  # it has ended already, as its socket will tell
        process.stdin.write(pickle.dumps((rank, connection.fileno(), memory, port, config)))
    return process


def meet_under_torchrun(rank: int, size: int, timeout: int) -> tuple[dict[int, Link], dist.Store]:
    """Links as GroupCoordinator has them, and torchrun's store.

    Raises:
        EngineDeadError: a rank does not come.
    """
    store = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout * PATIENCE)))[0]
    address, key, links = os.environ["MASTER_ADDR"], "folovllm/port", {}
    if rank:
        connection = socket.create_connection((address, int(store.get(key))))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Link(connection).send(rank)
        return {0: Link(connection)}, store
    with socket.create_server((address, 0)) as listener:
        store.set(key, str(listener.getsockname()[1]))
        listener.settimeout(timeout * PATIENCE)
        while len(links) < size - 1:
            try:
                link = Link(listener.accept()[0])
            except TimeoutError:
                missing = sorted({*range(1, size)} - links.keys())
                raise EngineDeadError(f"rank {missing[0]} of {size} did not come") from None
            link.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            links[int(link.receive(timeout))] = link
    return links, store


def join(
    rank: int, size: int, links: dict[int, Link], shared: Any, device: torch.device, timeout: int, *, in_order: bool
) -> Collectives:
    """When all are there. shared: a file in memory, or a store of torch.distributed."""
    if isinstance(shared, int):
        sockets = [link.connection.fileno() for link in links.values()]
        made = SharedMemory(rank, size, shared, sockets, timeout)
        os.close(shared)
        return made
    waits = timedelta(seconds=timeout)
    if device.type == "cuda":
        group: Any = dist.ProcessGroupNCCL(shared, rank, size, waits)
    else:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = waits
        options._devices = [_gloo_device(links)]
        group = dist.ProcessGroupGloo(shared, rank, size, options)
    return TorchCollectives(rank, size, group, in_order=in_order or device.type == "cpu")


def store_of(port: int, size: int, timeout: int) -> dist.Store:
    """That of start_processes(), in another process."""
    return _store(port, size, timeout)


def hear(rank: int, link: Link, seconds: float) -> Any:
    """A rank's next message. Raises EngineDeadError: there is none, or it says that the rank has failed."""
    try:
        message = link.receive(seconds)
    except TimeoutError:
        raise EngineDeadError(f"rank {rank} does not answer: nothing came for {seconds} s") from None
    except (EOFError, OSError):
        raise EngineDeadError(f"rank {rank} {link.last_words()}") from None
    if isinstance(message, dict) and "error" in message:
        raise EngineDeadError(f"rank {rank} failed: {message['error']}")
    return message


def _store(port: int, size: int, timeout: int, **more: Any) -> dist.TCPStore:
    waits = timedelta(seconds=timeout * PATIENCE)
    return dist.TCPStore("127.0.0.1", port, size, wait_for_workers=False, timeout=waits, **more)


def _gloo_device(links: dict[int, Link]) -> Any:
    """On the loopback alone, where the ranks are on one machine."""
    connection = next(iter(links.values())).connection
    if connection.family == socket.AF_UNIX or connection.getsockname()[0] in ("127.0.0.1", "::1"):
        return dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    return dist.ProcessGroupGloo.create_default_device()
