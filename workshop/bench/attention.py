"""Attention of one layer: reading K and V through block tables against reading them from one contiguous stretch.

    decode     one query per sequence: reads its whole context once. Floor: the time in which those bytes arrive
    prefill    as many queries as keys: 4 * heads * head_size operations for each visible pair. Floor: those

Both kinds of reader see the same numbers. "scattered" draws the blocks of every table at random from the pool,
"consecutive" puts each sequence's blocks side by side, as they are in a pool that has not been used for long.

vLLM: none in the package (its repository has benchmarks/attention_benchmarks/)
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from folovllm.attention.backend import BACKENDS, AttentionBackend, get_backend_class, select_backend
from folovllm.attention.backends.dense import DenseBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.bench.options import add_batch_sizes, add_common, add_number
from folovllm.bench.report import Line, Report, Row, medians
from folovllm.bench.shapes import DEFAULT_SHAPE, SHAPES
from folovllm.bench.workload import progress_bar
from folovllm.utils.devices import default_device
from workshop.bench.roofline import Probe
from workshop.bench.timer import Timer

COMMON = ["dtype", "batch", "context", "blocks", "backend", "dense_ms", "paged_ms", "ratio"]
COLUMNS = {
    "decode": [*COMMON, "paged_gb_per_s", "memory_gb_per_s", "copy_gb_per_s"],
    "prefill": [*COMMON, "paged_tflop_per_s", "matmul_tflop_per_s"],
}
DTYPES = ["float32", "bfloat16", "float16"]
ALL = "all"
LAYERS = 4  # in turn, so that none finds its K and V in a cache that a real model's other layers would have filled
LAYER_BYTES = 512 << 20  # on a GPU so many layers that they have this together, eight times what its cache holds
REPEATS = 7  # of each contestant in a round
CUDA_STEPS = 20  # in a row between two events, so that starting and waiting are a small part


@dataclass
class Reader:
    """A backend with its caches, one per layer, and how to make the metadata of a step."""

    backend: AttentionBackend
    caches: list[torch.Tensor]
    make_metadata: Callable[[], AttentionMetadata]
    timer: Timer = field(init=False)

    def warm_up(self, q: torch.Tensor) -> None:
        """Compiles what has to be; on a GPU it records a decode step as a CUDA graph where the backend allows that."""
        metadata = self.make_metadata()
        if self.backend.supports_cuda_graphs and len(q) == len(metadata.seq_lens):
            self.timer = Timer(lambda: self._step(q, metadata), q.device, CUDA_STEPS, graph=True)
        else:
            self.timer = Timer(lambda: self._step(q, self.make_metadata()), q.device, CUDA_STEPS)

    def seconds(self) -> float:
        """For one layer of one step; the planning of the step is included where it is not in a graph."""
        return self.timer.seconds() / len(self.caches)

    def _step(self, q: torch.Tensor, metadata: AttentionMetadata) -> None:
        for cache in self.caches:
            self.backend.forward(q, cache, metadata)


@dataclass(frozen=True)
class Work:
    """One case: the sequences, all alike."""

    dtype: str
    batch: int
    context: int
    blocks: str
    prefill: bool
    heads: int
    kv_heads: int
    head_size: int

    @property
    def queries(self) -> int:
        """Of each sequence: all of its tokens, or the last."""
        return self.context if self.prefill else 1

    @property
    def num_bytes(self) -> int:
        """Of K and V, each read once."""
        return 2 * self.batch * self.context * self.kv_heads * self.head_size * getattr(torch, self.dtype).itemsize

    @property
    def flops(self) -> int:
        """Two products of head_size numbers for each query, and each key that it sees."""
        pairs = self.queries * self.context - self.queries * (self.queries - 1) // 2
        return 4 * self.batch * self.heads * self.head_size * pairs


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "One layer's attention in a decode step, or in prefill: through block tables against a contiguous cache."
    command.description = text
    command.add_argument("--shape", choices=list(SHAPES), default=DEFAULT_SHAPE, help="heads of this shape")
    command.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES[:2], help="of the cache")
    add_batch_sizes(command, 1, 8, help="sequences")
    add_number(command, "--contexts", default=[256, 1024], help="tokens of each", nargs="+")
    add_number(command, "--block-size", default=16, help="tokens of a block")
    text = "the paged backend, or 'all' that can run; when not given, the one that an engine would pick"
    command.add_argument("--backend", help=text)
    command.add_argument("--prefill", action="store_true", help="whole prompts of --contexts tokens: TFLOP/s")
    command.add_argument("--device", help="cpu, cuda or cuda:<index>")
    add_common(command, rounds=5)


def run(args: argparse.Namespace) -> Report:
    """--backend: a name, "all" for every paged one that can run, none for the one that an engine would pick."""
    on, phase = torch.device(args.device or default_device()), "prefill" if args.prefill else "decode"
    config = SHAPES[args.shape]
    heads = tuple(config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    cases = [
        Work(dtype, batch, context, blocks, args.prefill, *heads)
        for dtype in args.dtypes
        for batch in args.batch_sizes
        for context in args.contexts
        for blocks in ("consecutive", "scattered")
    ]
    paged = paged_backends(args.backend, on)
    lines: list[Line] = []
    refused: dict[str, None] = {}  # an ordered set
    probes = {dtype: Probe(on, getattr(torch, dtype)) for dtype in args.dtypes}
    for probe in probes.values():
        probe.measure(warm_up=True)  # the first copy into fresh memory waits for its pages
    with progress_bar(len(cases)) as tick:
        for work in cases:
            tick(f"{work.dtype}, {work.batch} x {work.context} tokens, {work.blocks}")
            probes[work.dtype].measure()
            lines += _measure(paged, work, args, on, refused if args.backend == ALL else None)
    for facts, _ in lines:
        probe = probes[facts["dtype"]]
        facts |= {"matmul_tflop_per_s": probe.flops_per_s / 1e12}
        facts |= {"memory_gb_per_s": statistics.median(probe.read) / 1e9}
        facts |= {"copy_gb_per_s": statistics.median(probe.copy) / 1e9}
    notes = [
        f"Milliseconds for one layer of one {phase} step; {medians(args.rounds, 'round').lower()}, all in turn.",
        f"ratio: the backend over dense, the median of the rounds' ratios. Blocks of {args.block_size} tokens.",
        *(probe.describe() for probe in probes.values()),
        *(f"Not measured: {reason}" for reason in refused),
    ]
    if on.type == "cuda" and not args.prefill:
        notes.append("Decode steps of backends that support CUDA graphs are replayed from one, others launched.")
    report = Report.of(args, f"{phase.capitalize()} attention, {args.shape} shape", COLUMNS[phase], lines, notes)
    report.name = "attention-prefill" if args.prefill else "attention"
    return report


def paged_backends(name: str | None, device: torch.device) -> list[type[AttentionBackend]]:
    """Those to measure. Raises ValueError for a name that is unknown or cannot run here."""
    if name != ALL:
        return [select_backend(name, device)]
    return [
        backend
        for backend in map(get_backend_class, BACKENDS)
        if backend.reads_block_tables
        and backend.unavailable_reason(device) is None
        and (device.type == "cuda" or not backend.only_by_name(device))  # an interpreter takes too long
    ]


@torch.inference_mode()
def _measure(
    paged: Sequence[type[AttentionBackend]], work: Work, args: argparse.Namespace, device: torch.device,
    refused: dict[str, None] | None,
) -> list[Line]:  # fmt: skip
    """A row per backend, and what each round measured. refused: takes why some cannot; None: an error says so."""
    readers, q = make_readers(paged, work, args.block_size, device, args.seed)
    able: list[Reader] = []
    for reader in readers:
        try:
            reader.backend.kv_cache_shape(1, args.block_size)
            reader.warm_up(q)
            able.append(reader)
        except ValueError as error:
            if refused is None:
                raise
            refused[str(error)] = None
    # Turn by turn, so that whatever else the machine does meets all.
    turns = [[[reader.seconds() for reader in able] for _ in range(REPEATS)] for _ in range(args.rounds)]
    medians = [[statistics.median(times) for times in zip(*turn, strict=True)] for turn in turns]
    dense, *others = zip(*medians, strict=True)
    lines: list[Line] = []
    for reader, times in zip(able[1:], others, strict=True):
        seconds = statistics.median(times)
        facts: Row = {name: getattr(work, name) for name in ("dtype", "batch", "context", "blocks")}
        facts |= {"backend": reader.backend.name, "paged_tflop_per_s": work.flops / seconds / 1e12}
        facts |= {"paged_gb_per_s": work.num_bytes / seconds / 1e9}
        samples = {"dense_ms": [each * 1e3 for each in dense], "paged_ms": [each * 1e3 for each in times]}
        samples["ratio"] = [mine / theirs for mine, theirs in zip(times, dense, strict=True)]
        lines.append((facts, samples))
    return lines


def make_readers(
    paged: Sequence[type[AttentionBackend]], work: Work, block_size: int, device: torch.device, seed: int = 0
) -> tuple[list[Reader], torch.Tensor]:
    """The contiguous reader and the paged ones over the same K and V, and the queries of one step."""
    torch.manual_seed(seed)
    kind, per_seq = getattr(torch, work.dtype), -(-work.context // block_size)
    ids = torch.arange(1, 1 + work.batch * per_seq)
    if work.blocks == "scattered":
        ids = ids[torch.randperm(len(ids))]
    table = ids.view(work.batch, per_seq)
    layers = LAYERS if device.type == "cpu" else min(max(LAYERS, LAYER_BYTES // work.num_bytes), 64)
    dense_caches, paged_caches = [], []
    for _ in range(layers):
        size = (2, 1 + work.batch * per_seq, block_size, work.kv_heads, work.head_size)
        cache = torch.randn(size, device=device, dtype=kind)
        paged_caches.append(cache)
        dense_caches.append(cache[:, table.to(device)].flatten(2, 3)[:, :, : work.context].contiguous())

    def metadata(block_tables: torch.Tensor) -> AttentionMetadata:
        return AttentionMetadata(
            query_start_loc=torch.arange(work.batch + 1, dtype=torch.int32, device=device) * work.queries,
            seq_lens=torch.full((work.batch,), work.context, dtype=torch.int32, device=device),
            slot_mapping=torch.zeros(work.batch * work.queries, dtype=torch.int64, device=device),
            block_tables=block_tables,
            max_query_len=work.queries,
            max_seq_len=work.context,
            num_decodes=0 if work.prefill else work.batch,
        )

    def reader(backend: type[AttentionBackend], caches: list[torch.Tensor], block_tables: torch.Tensor) -> Reader:
        instance = backend(work.heads, work.kv_heads, work.head_size, work.head_size**-0.5)
        on_device = block_tables.to(device, torch.int32)
        return Reader(instance, caches, lambda: metadata(on_device))

    slots = torch.arange(work.batch)[:, None]
    readers = [reader(DenseBackend, dense_caches, slots), *(reader(cls, paged_caches, table) for cls in paged)]
    return readers, torch.randn(work.batch * work.queries, work.heads, work.head_size, device=device, dtype=kind)
