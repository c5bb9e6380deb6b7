"""The life of the ranks: rank 0 starts the others and checks that they match it; each of them builds its part of the
model, then repeats what rank 0's does until that has gone.

    python -m folovllm.engine.ranks          a rank that rank 0 has started
    torchrun --nproc-per-node 2 program.py   LLM(tensor_parallel_size=2) is the engine in rank 0, and in rank 1 this

What rank 0 shares with those that it starts has no name in any folder, and ends with them: a pair of sockets for each,
and memory, or a store of torch.distributed on the loopback. Under torchrun it listens at MASTER_ADDR.

vLLM: v1/executor/multiproc_executor.py, distributed/utils.py (StatelessProcessGroup)
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
import torch.distributed as dist

from folovllm import __version__
from folovllm.config import EngineConfig
from folovllm.distributed.collectives import memory_bytes
from folovllm.distributed.parallel_state import GroupCoordinator, Peer, join
from folovllm.engine.builder.budgets import resolve_scheduler_config
from folovllm.engine.builder.components import choose_components
from folovllm.engine.builder.engine_core import lora_layers, record_graphs, size_cache
from folovllm.engine.builder.kernel_check import check_kernels
from folovllm.engine.one_thread import threads_for_steps
from folovllm.errors import EngineDeadError
from folovllm.model_loader import resolve_device, resolve_dtype, resolve_max_model_len
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.model_files import is_gguf
from folovllm.models.decoder import DecoderSpec
from folovllm.models.registry import model_spec
from folovllm.models.shard import shard_of
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.checks import wrong
from folovllm.utils.cpu_kernels import unavailable_reason
from folovllm.worker.follower import Follower
from folovllm.worker.kv_cache import KVCache, kv_bytes_per_token, kv_cache_groups
from folovllm.worker.model_runner import current_device, make_mover

PATIENCE = 10  # times distributed_timeout_seconds, for what takes long at the start
MOST_CALLERS = 64  # that have not said yet who they are
BEGINNING = 1 << 20  # bytes of a file of weights that are compared between ranks: its head, and the first weights


def start_ranks(
    config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device
) -> GroupCoordinator | None:
    """The group that computes the model, of which this process is rank 0; None: it computes it alone. Another rank of
    torchrun's does not come back from here: its process ends when rank 0 has gone.

    Raises:
        ValueError: there are not so many GPUs, or processes of torchrun's; the model cannot be cut into so many parts.
            No rank has been started for that.
        EngineDeadError: a rank has ended, does not come, or is another than this one.
    """
    size, timeout = config.parallel_config.tensor_parallel_size, config.parallel_config.distributed_timeout_seconds
    if size == 1:
        return None
    config = replace(config, model_config=replace(config.model_config, logits_processors=None))  # rank 0 alone draws
    spec = model_spec(config.model_config.model_impl, hf_config, config.model_config.max_model_len)
    chosen = choose_components(config, hf_config, dtype, device, spec)  # which refuses what cannot be cut
    assert isinstance(spec, DecoderSpec)
    shard_of(spec, chosen.ops.linear, 0, size)
    facts = facts_of(config)
    if "RANK" in os.environ:
        rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if processes != size:
            raise wrong("tensor_parallel_size", f"be WORLD_SIZE, {processes}, under torchrun", size)
        links, shared = meet_under_torchrun(rank, size, timeout)
        if rank:
            run_rank(rank, links[0], shared, config)
            sys.exit(0)
    else:
        if device.type == "cuda" and (count := torch.cuda.device_count()) < size:
            raise wrong("tensor_parallel_size", f"be at most {count}, the GPUs of this machine", size)
        links, shared = start_processes(size, device, timeout, config)
    try:
        for rank, link in links.items():
            theirs = link.recv(rank, timeout * PATIENCE)
            for name, value in facts.items():
                if theirs.get(name) != value:
                    must = f"rank {rank} must have the {name} that rank 0 has, {value}"
                    raise EngineDeadError(f"{must}, got {theirs.get(name)}")
        for link in links.values():
            link.send("welcome")
        return join(0, links, shared, device, config)
    except BaseException:
        for link in links.values():
            link.close()
        raise


def facts_of(config: EngineConfig) -> dict[str, str]:
    """What must be alike on all ranks. The folder of weights may be at another place on each."""
    model_config, digest = config.model_config, hashlib.sha256()
    weights = _weights(config)
    for path in () if weights is None else _files(weights):
        with path.open("rb") as file:
            digest.update(f"{path.name} {path.stat().st_size}".encode() + file.read(BEGINNING))
    options = replace(config, model_config=replace(model_config, model="-", tokenizer="-", device=None))
    return {
        "version": f"{__version__} on torch {torch.__version__}",
        "model": digest.hexdigest()[:16],
        "options": hashlib.sha256(repr(options).encode()).hexdigest()[:16],
        "FOLOVLLM_CHECK_KERNELS": os.environ.get("FOLOVLLM_CHECK_KERNELS", "yes"),
    }


def _files(weights: Path) -> list[Path]:
    return [weights] if is_gguf(weights) else sorted([weights / "config.json", *weights.glob("*.safetensors")])


def _weights(config: EngineConfig) -> Path | None:
    return None if config.model_config.load_format == "dummy" else weights_folder(config.model_config.model)


def run_rank(rank: int, link: Peer, shared: Any, config: EngineConfig) -> None:
    """All of a rank's life. shared: as join() takes it. What ends it early is said to rank 0."""
    try:
        config = replace(config)
        if config.model_config.device != "cpu" and torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", rank))
            config.model_config = replace(config.model_config, device=f"cuda:{local}")
        hf_config, device = load_hf_config(config.model_config), resolve_device(config.model_config)
        config.set_max_model_len(resolve_max_model_len(hf_config, config.model_config.max_model_len))
        link.send(facts_of(config))
        link.receive()  # its welcome
        group, size = join(rank, {0: link}, shared, device, config), config.parallel_config.tensor_parallel_size
        with current_device(device), threads_for_steps(config.model_config.model, size)():
            build_follower(config, hf_config, device, group).run()
    except BaseException as error:
        if not link.is_closed():  # else rank 0 has gone: the usual end
            link.send(f"failed: {type(error).__name__}: {error}")
            raise
    finally:
        link.close()


def build_follower(config: EngineConfig, hf_config: Any, device: torch.device, group: GroupCoordinator) -> Follower:
    """As build_engine_core() builds rank 0's, in the same order: both join in what all ranks do together."""
    model_config, speculative = config.model_config, config.speculative_config
    dtype, longest, seed = resolve_dtype(model_config, hf_config, device), model_config.max_model_len, model_config.seed
    limits = resolve_scheduler_config(config.scheduler_config, longest, device.type)
    spec = model_spec(model_config.model_impl, hf_config, longest)
    chosen = replace(choose_components(config, hf_config, dtype, device, spec), draws=False)
    chosen = check_kernels(chosen, config, spec, dtype, device, group)
    model = build_model(hf_config, longest, dtype, device, _weights(config), seed=seed, ops=chosen.ops, group=group)
    most_rows = limits.max_num_seqs * (1 + (speculative.num_speculative_tokens if speculative else 0))
    lora = lora_layers(config, spec, model, dtype, device, chosen, group)
    token_bytes = kv_bytes_per_token(model.decoder_spec, chosen.cache_dtype)
    groups = kv_cache_groups(model.decoder_spec, limits, config.cache_config.block_size, one_table=True)
    size = size_cache(config, model, chosen, limits, most_rows, token_bytes, dtype, device, groups)
    num_blocks, num_swap_blocks = group.fewest([size.num_blocks, size.num_swap_blocks])
    kv_cache = KVCache(
        model, chosen.backend, num_blocks=num_blocks + 1, block_size=size.block_size, dtype=chosen.cache_dtype,
        device=device,
    )  # fmt: skip
    if device.type == "cuda":
        kv_cache.warm_up(dtype)
        model.model.ops.warm_up(model)
    longest = min(longest, replace(size, num_blocks=num_blocks).num_tokens)
    graphs = record_graphs(model, chosen, most_rows, longest, size.block_size, dtype, device)
    return Follower(model, make_mover(kv_cache, num_swap_blocks, device), graphs, group, device, lora)


def start_processes(size: int, device: torch.device, timeout: int, config: object) -> tuple[dict[int, Peer], Any]:
    """A link to each of the other ranks, which get `config`; and what join() takes."""
    memory, port, links = None, 0, {}
    if device.type == "cpu" and unavailable_reason() is None:
        of_linux = hasattr(os, "memfd_create")  # closed with the group
        shared: Any = open(os.memfd_create("folovllm-ranks"), "r+b") if of_linux else TemporaryFile()  # noqa: SIM115
        shared.truncate(memory_bytes(size))
        memory = shared.fileno()
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        shared = store_at(port, size, timeout, is_master=True, master_listen_fd=listener.detach())
    for rank in range(1, size):
        ours, theirs = socket.socketpair()
        links[rank] = Peer(ours, start_process(rank, theirs, memory, port, config))
        theirs.close()
    return links, shared


def start_process(
    rank: int, connection: socket.socket, memory: int | None, port: int, config: object
) -> subprocess.Popen[bytes]:
    """Not a fork: torch's threads and CUDA do not live on in one. Nor multiprocessing's spawn, which reads a program's
    own file again. A terminal's Ctrl-C does not reach it, nor does a module of the current folder."""
    shared = [connection.fileno(), *([] if memory is None else [memory])]
    home = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "folovllm.engine.ranks"], stdin=subprocess.PIPE, pass_fds=shared,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), home])}, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None  # for the type checker
    with suppress(BrokenPipeError), process.stdin:  # it has ended already, as its socket will tell
        process.stdin.write(pickle.dumps((rank, connection.fileno(), memory, port, config)))
    return process


def store_at(port: int, size: int, timeout: int, **more: Any) -> dist.Store:
    waits = timedelta(seconds=timeout * PATIENCE)
    return dist.TCPStore("127.0.0.1", port, size, wait_for_workers=False, timeout=waits, **more)


def meet_under_torchrun(rank: int, size: int, timeout: int) -> tuple[dict[int, Peer], dist.Store]:
    """Links as GroupCoordinator has them, and torchrun's store. Raises EngineDeadError: a rank does not come."""
    address, key, waits = os.environ["MASTER_ADDR"], "folovllm/port", timeout * PATIENCE
    try:
        store = next(dist.rendezvous(f"env://?rank={rank}&world_size={size}", timeout=timedelta(seconds=waits)))[0]
        if rank:
            port, nonce = store.get(key).decode().split()
            connection = socket.create_connection((address, int(port)))
            connection.sendall(_greeting(nonce, rank))
            return {0: Peer(connection)}, store
        nonce = secrets.token_hex()
        with socket.create_server((address, 0)) as listener:
            store.set(key, f"{listener.getsockname()[1]} {nonce}")
            links = _answer(listener, {_greeting(nonce, rank): rank for rank in range(1, size)}, waits)
    except (TimeoutError, dist.DistError) as error:
        raise EngineDeadError(f"not all of {size} ranks came within {waits} s: {error}") from None
    return links, store


def _greeting(nonce: str, rank: int) -> bytes:
    """What a rank says first. The nonce is in torchrun's store, where a stranger does not find it."""
    return f"{nonce} {rank:>9}".encode()


def _answer(listener: socket.socket, ranks: dict[bytes, int], seconds: float) -> dict[int, Peer]:
    """`ranks`, by their greetings. Another caller is dropped, and one that is silent holds up nobody."""
    links: dict[int, Peer] = {}
    heard, length, end = {listener: b""}, len(next(iter(ranks))), time.monotonic() + seconds
    while ranks:
        if not (ready := select.select(heard, [], [], max(0.0, end - time.monotonic()))[0]):
            raise TimeoutError("timed out")
        for caller in ready:
            said = heard.pop(caller, b"")
            if caller is listener:
                heard = {**dict([*heard.items()][-MOST_CALLERS:]), listener: b"", listener.accept()[0]: b""}
                continue
            with suppress(OSError):
                said += (more := caller.recv(length - len(said)))
                if more and len(said) < length:
                    heard[caller] = said
                elif said in ranks:
                    links[ranks.pop(said)] = Peer(caller)
    return links


if __name__ == "__main__":
    number, descriptor, memory, port, given = pickle.load(sys.stdin.buffer)
    size, timeout = given.parallel_config.tensor_parallel_size, given.parallel_config.distributed_timeout_seconds
    common = open(memory, "r+b") if memory else store_at(port, size, timeout)  # noqa: SIM115
    run_rank(number, Peer(socket.socket(fileno=descriptor)), common, given)
