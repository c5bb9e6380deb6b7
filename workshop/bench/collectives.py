"""What two ranks of this machine do together, one thing at a time: a sum, a step's message, what a draw needs.

    sum    by the way that the engine takes with a compiler, and by the one without
    step   32 sequences of 500 tokens, one decode each: packed by one rank and taken apart by another
    draw   the logits of half of a vocabulary, or the winner of each row, gathered at rank 0

The second rank is another process. A machine has other work, too, so the fastest tenth of the calls is shown.

vLLM: none
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist

from folovllm.attention.metadata import AttentionMetadata
from folovllm.bench.options import add_number, add_output
from folovllm.bench.report import Line, Report
from folovllm.config import EngineConfig, ModelConfig, ParallelConfig
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.distributed.collectives import memory_bytes
from folovllm.distributed.parallel_state import Peer, join
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from folovllm.utils.cpu_kernels import unavailable_reason
from folovllm.worker.follower import pack_step, unpack_step

COLUMNS = ["kind", "what", "bytes", "us"]
SIZES = (1024, 16_384, 524_288)
"""Of the vectors that are added, in float32 numbers: 8 tokens of the embedded model have 1,024."""
SEQS, TOKENS, BLOCK_SIZE = 32, 500, 16
ROWS, HALF = 8, 151_936 // 2
CONFIG = EngineConfig(ModelConfig("embedded"), parallel_config=ParallelConfig(2))
Calls = list[tuple[str, str, int, Callable[[], object]]]
"""Kind, what, bytes, and the call itself."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Sums over two ranks of this machine, what a step's message weighs, and what a draw gathers."
    add_number(command, "--calls", default=400, help="of each (default: 400)")
    add_output(command)


def run(args: argparse.Namespace) -> Report:
    if (reason := unavailable_reason()) is not None:
        raise ValueError(f"sums in shared memory need the compiled kernels: {reason}")
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder, two_ranks(f"{folder}/store", args.calls) as calls:
        for kind, what, num_bytes, call in [*calls, *messages()]:
            us = 1e6 * fastest_tenth(call, args.calls)
            lines.append(({"kind": kind, "what": what, "bytes": num_bytes, "us": us}, {}))
    notes = [f"The fastest tenth of {args.calls:,} calls; two processes of one thread each."]
    return Report.of(args, "What two ranks do together", COLUMNS, lines, notes)


@contextmanager
def two_ranks(store: str, count: int) -> Iterator[Calls]:
    """What rank 0 calls, in this process; the other rank makes as many of each, in the same order."""
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("spawn").Process(target=second_rank, args=(theirs, store, count), daemon=True)
    process.start()
    theirs.close()
    memory = os.memfd_create("folovllm-bench")
    os.ftruncate(memory, memory_bytes(2))
    socket.send_fds(ours, [b"memory"], [memory])
    yield together(0, ours, memory, store)
    process.join()


def second_rank(connection: socket.socket, store: str, count: int) -> None:
    _, (memory,), *_ = socket.recv_fds(connection, 6, 1)
    for *_, call in together(1, connection, memory, store):
        fastest_tenth(call, count)


def together(rank: int, connection: socket.socket, memory: int, store: str) -> Calls:
    torch.set_num_threads(1)
    links, cpu = {1 - rank: Peer(connection)}, torch.device("cpu")
    both = os.fdopen(memory, "r+b"), dist.FileStore(store, 2)
    shared, gloo = (join(rank, links, way, cpu, CONFIG) for way in both)  # a group that is gone closes its links
    calls: Calls = []
    for what, group in (("a sum in shared memory", shared), ("a sum by gloo", gloo)):
        for size in SIZES:
            calls.append(("sum", what, 4 * size, partial(group.all_reduce, torch.zeros(size))))
    logits, winners = torch.zeros(ROWS, HALF), torch.zeros(ROWS, 2, dtype=torch.float64)
    calls.append(("draw", f"logits of {ROWS} rows", logits.nbytes, partial(shared.gather, logits, [HALF] * 2)))
    calls.append(("draw", f"winners of {ROWS} rows", winners.nbytes, partial(shared.gather, winners, [2, 2])))
    return calls


def messages() -> Calls:
    """A decode step, three ways: packed, and taken apart."""
    output = SchedulerOutput()
    for number in range(SEQS):
        request = Request(str(number), None, list(range(1, TOKENS + 1)), SamplingParams(max_tokens=100))
        (seq,) = request.get_seqs()
        seq.block_ids, seq.num_computed_tokens = list(range(TOKENS // BLOCK_SIZE + 1)), TOKENS - 1
        output.add(seq, 1)
    changes = [(seq.seq_id, TOKENS, TOKENS - 1, 1, seq.block_ids[-1:]) for seq in output.scheduled_seqs]
    tables = torch.zeros(SEQS, TOKENS // BLOCK_SIZE + 1, dtype=torch.int32)
    ids, lens = torch.zeros(SEQS, dtype=torch.int64), torch.full((SEQS,), TOKENS, dtype=torch.int32)
    metadata = AttentionMetadata(torch.arange(SEQS + 1, dtype=torch.int32), lens, ids, tables, 1, TOKENS)
    _, flat = pack_step(ids, ids, metadata)

    def pickled(what: str, message: object) -> tuple[str, str, int, Callable[[], object]]:
        return "step", what, len(pickle.dumps(message)), lambda: pickle.loads(pickle.dumps(message))

    return [
        ("step", "prepared arrays", flat.nbytes, lambda: unpack_step(*pack_step(ids, ids, metadata))),
        pickled("SchedulerOutput, pickled", output),
        pickled("what has changed in it, pickled", changes),
    ]


def fastest_tenth(call: Callable[[], object], count: int) -> float:
    """Seconds."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[count // 10]
