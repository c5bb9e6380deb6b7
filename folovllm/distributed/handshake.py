"""How the ranks find one another, and agree on how they add.

    rank 0                                            the others
    starts a process for each, or listens    ◀──────  a socket from birth, or connect
    are they what I am?                      ◀──────  rank, version, digest of the model, options
    memory: a file without a name            ──────▶  map it, if it can be opened from here
    shared memory, gloo or NCCL              ──────▶  and join

The processes that rank 0 starts have a pair of sockets with it that no one else can reach. Under torchrun the processes
exist, and rank 0 listens at MASTER_ADDR, which torchrun sets to an address of this machine unless it is given another.

vLLM: v1/executor/multiproc_executor.py, distributed/utils.py (StatelessProcessGroup)
"""

from __future__ import annotations

import ipaddress
import mmap
import os
import secrets
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from folovllm.distributed.collectives import Collectives, SharedMemory, TorchCollectives, memory_bytes
from folovllm.distributed.link import Link
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.errors import EngineDeadError
from folovllm.utils.cpu_kernels import unavailable_reason

TOKEN_AT, TOKEN_BYTES = 16, 16
"""In the shared memory's first line, behind what the first rank counts: how another rank knows the right memory."""
PORT = "folovllm/port"
Facts = dict[str, str]
"""What must be the same on all ranks, by what it is called."""


def start_time(timeout: int) -> int:
    """Seconds that a rank may take for its imports, or for its weights."""
    return 10 * timeout


def lead(links: dict[int, Link], facts: Facts, device: torch.device, timeout: int, *, in_order: bool) -> GroupCoordinator:
    """Rank 0's side.

    Raises:
        EngineDeadError: a rank has ended, does not come, or is another than this one; by what differs.
    """
    size = len(links) + 1
    try:
        for rank, link in links.items():
            check_same(rank, facts, hear(rank, link, start_time(timeout)))
        memory = None
        if device.type == "cpu" and unavailable_reason() is None:
            memory = _share_memory(links, size)
        if memory is not None:
            for link in links.values():
                link.send(backend="memory")
            collectives: Collectives = _shared(0, size, memory, links, timeout)
        else:
            backend = "nccl" if device.type == "cuda" else "gloo"
            collectives = _torch_collectives(0, size, links, backend, timeout, in_order)
        return GroupCoordinator(0, size, links, collectives)
    except BaseException:
        for link in links.values():
            link.close()
        raise


def hear(rank: int, link: Link, seconds: float) -> dict[str, Any]:
    """A rank's next message. Raises EngineDeadError: there is none, or it says that the rank has failed."""
    try:
        message = link.receive(seconds)
    except TimeoutError:
        raise EngineDeadError(f"rank {rank} does not answer: nothing came for {seconds} s") from None
    except (EOFError, OSError):
        raise EngineDeadError(f"rank {rank} {link.last_words()}") from None
    if "error" in message:
        raise EngineDeadError(f"rank {rank} failed: {message['error']}")
    return message


def check_same(rank: int, ours: Facts, theirs: Facts) -> None:
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise EngineDeadError(
                f"rank {rank} must have the same {name} as rank 0, got {theirs.get(name)} where rank 0 has {value}"
            )


def follow(rank: int, size: int, link: Link, facts: Facts, timeout: int, *, in_order: bool) -> GroupCoordinator:
    """Another rank's side. Raises EOFError: rank 0 has gone, or does not want this one."""
    link.send(rank=rank, **facts)
    while True:
        said = link.receive(start_time(timeout))
        if "memory" in said:
            memory = _open_memory(said["memory"], said["token"], size)
            link.send(shared=memory is not None)
        elif said["backend"] == "memory":
            assert memory is not None  # rank 0 asked whether it is
            return GroupCoordinator(rank, size, {0: link}, _shared(rank, size, memory, {0: link}, timeout))
        else:
            store = _store(said["host"], said["port"], size, timeout)
            group = _torch_group(store, rank, size, said["backend"], said["host"], timeout)
            collectives = TorchCollectives(rank, size, group, in_order=in_order or said["backend"] == "gloo")
            return GroupCoordinator(rank, size, {0: link}, collectives)


def _shared(rank: int, size: int, memory: mmap.mmap, links: dict[int, Link], timeout: int) -> SharedMemory:
    return SharedMemory(rank, size, memory, [link.connection.fileno() for link in links.values()], timeout)


def _share_memory(links: dict[int, Link], size: int) -> mmap.mmap | None:
    """Memory that all ranks have mapped; None: one of them cannot. It has no name in any folder, and ends with the
    last process that has it."""
    descriptor = os.memfd_create("folovllm-ranks")
    try:
        os.ftruncate(descriptor, memory_bytes(size))
        memory = mmap.mmap(descriptor, memory_bytes(size))
        token = secrets.token_bytes(TOKEN_BYTES)
        memory[TOKEN_AT : TOKEN_AT + TOKEN_BYTES] = token
        for link in links.values():
            link.send(memory=f"/proc/{os.getpid()}/fd/{descriptor}", token=token.hex())
        answers = [hear(rank, link, start_time(1))["shared"] for rank, link in links.items()]
        return memory if all(answers) else None
    finally:
        os.close(descriptor)


def _open_memory(path: str, token: str, size: int) -> mmap.mmap | None:
    """None: this rank is on another machine, or may not open it."""
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), memory_bytes(size))
    except (OSError, ValueError):
        return None
    return memory if memory[TOKEN_AT : TOKEN_AT + TOKEN_BYTES].hex() == token else None


def _torch_collectives(
    rank: int, size: int, links: dict[int, Link], backend: str, timeout: int, in_order: bool
) -> TorchCollectives:
    host = _host(links)
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = _store(host, port, size, timeout, listener)
    for link in links.values():
        link.send(backend=backend, host=host, port=port)
    group = _torch_group(store, rank, size, backend, host, timeout)
    return TorchCollectives(rank, size, group, in_order=in_order or backend == "gloo")


def _host(links: dict[int, Link]) -> str:
    """The address under which the other ranks reach this process."""
    connection = next(iter(links.values())).connection
    return "127.0.0.1" if connection.family == socket.AF_UNIX else str(connection.getsockname()[0])


def _store(host: str, port: int, size: int, timeout: int, listener: socket.socket | None = None) -> dist.TCPStore:
    listens: dict[str, Any] = {} if listener is None else {"is_master": True, "master_listen_fd": listener.detach()}
    return dist.TCPStore(host, port, size, wait_for_workers=False, timeout=timedelta(seconds=timeout), **listens)


def _torch_group(store: dist.Store, rank: int, size: int, backend: str, host: str, timeout: int) -> Any:
    """torch.distributed's group object itself: its registry of groups is the program's, and not ours."""
    if backend == "nccl":
        return dist.ProcessGroupNCCL(store, rank, size, timedelta(seconds=timeout))
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout)
    if ipaddress.ip_address(host).is_loopback:
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    else:
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
    return dist.ProcessGroupGloo(store, rank, size, options)


def accept_ranks(size: int, timeout: int) -> dict[int, Link]:
    """Under torchrun, rank 0: a link to each of the others.

    Raises:
        EngineDeadError: one does not come.
    """
    address = os.environ["MASTER_ADDR"]
    agent = _agent_store(size, timeout)
    listener = socket.create_server((address, 0 if agent else int(os.environ["MASTER_PORT"])))
    if agent is not None:
        agent.set(PORT, str(listener.getsockname()[1]))
    listener.settimeout(start_time(timeout))
    links: dict[int, Link] = {}
    with listener:
        while len(links) < size - 1:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                missing = sorted({*range(1, size)} - links.keys())
                for link in links.values():
                    link.close()
                raise EngineDeadError(f"rank {missing[0]} of {size} did not come: {missing} are missing") from None
            connection.settimeout(None)
            link = Link(connection)
            links[int(link.receive(timeout)["rank"])] = link
    return dict(sorted(links.items()))


def connect_to_rank_0(rank: int, size: int, timeout: int) -> Link:
    agent = _agent_store(size, timeout)
    port = int(os.environ["MASTER_PORT"] if agent is None else agent.get(PORT))
    link = Link(socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=start_time(timeout)))
    link.connection.settimeout(None)
    link.send(rank=rank)
    return link


def _agent_store(size: int, timeout: int) -> dist.Store | None:
    """torchrun's, which has MASTER_PORT for itself; None: another program has set the environment."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    waits = timedelta(seconds=start_time(timeout))
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, timeout=waits)
