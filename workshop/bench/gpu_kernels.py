"""What each kernel of a decode step on a GPU takes, from the bytes that it moves, its operations and its launch.

The longer of its bytes and its operations, and a fixed time for each launch inside of a graph:

    28 layers   attention       every K and V of every context, and the tail: the last programs leave the GPU half empty
                products        four weights; on 256 rows a wave of tiles may take longer than the bytes
                small kernels   two norms, rotation with storing K and V, SwiGLU
    once        head            the largest weight
                sampling        a row of 151,936 logits for each sequence, read once
                upload          the step's inputs, to the device and to where the graph reads them, and tokens back

Every constant below is an assumption. They are named so that a measurement can show which of them was wrong.

vLLM: none
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from folovllm.attention.splits import SMS, choose_splits
from folovllm.bench.shapes import ModelShape
from folovllm.layers.quantization.plan import choose_plan
from folovllm.simulator.devices import DEVICES, Device
from workshop.bench.decode_tail import TailModel, list_programs

SHAPE = "qwen3-0.6b"
ITEM = 2  # bytes of a bfloat16
BLOCK_SIZE = 16

COPY_SHARE = 0.9  # of the bandwidth of a large copy, that a product's smaller reads reach
ATTENTION_SHARE = 0.95
DRAW_SHARE = 0.85
# Of the draw without filters, in the machine code that Triton 3.7 makes for a Hopper GPU: instructions of each
# of 256 threads for a round, which is 64 logits, and for all that a row has besides, most of it noise.
DRAW_THREADS, DRAW_LOGITS, DRAW_ROUND, DRAW_REST = 256, 64, 539, 1_627
ISSUES = 128 * 1.755e9  # instructions/s of all threads of an SM, at most
ISSUE_SHARE = 0.75  # of that, that a draw reaches
PRODUCTS = 650e12  # operations/s of all SMs while a wave of full tiles is computed
FEW_TILES = 90  # a product of fewer tiles is cut finer, or along its inner dimension,
FINER = 0.45  # and then takes this part of a full wave
# Of a product with codes of 4 bits, compiled for a Hopper GPU: instructions that take a code apart and hand it to the
# matrix units, once for each tile of rows. A scale and an offset are 5 bytes a group.
CODE_INSTRUCTIONS, CODE_GROUP = 5.6, 128
LAUNCH = 2.3e-6  # a small kernel of a graph, its beginning and end
PRODUCT_LAUNCH = 1.5e-6
ATTENTION_LAUNCH = 1.5e-6  # 2.5, of which 1.0 overlaps the rotation (utils/dependent_launch.py)
TILE_TOKENS = 64
HOST_LINK = 25e9  # bytes/s from the host's memory

# The copy, tokens that are still on the device, two copies to the graph's inputs; behind it two for the tokens drawn,
# and their copy to the host.
UPLOAD_OPERATIONS = 7
SMALL, PRODUCT_KERNELS, OTHERS = "small kernels", "products and head", "copies and others"
# A kernel's name here -> a pattern of the profiler's names; the first that matches. Libraries have many for products.
NAMES = {
    "decode": "_paged_decode",
    "merge of splits": "_merge",
    "norms": "rms_norm",
    "rotation": "norm_rotary",
    "SwiGLU": "silu_mul",
    "draw": "_sample|_draw|_race",
    PRODUCT_KERNELS: "gemm|gemv|nvjet|cutlass|xmma|splitk|matmul|aten::(mm|addmm|linear)|_linear_kernel|_few_rows",
}


@dataclass(frozen=True)
class Gpu:
    """`bandwidth` is a large copy's, bytes read and written, in bytes/s. `link`: to others, as the simulator has it."""

    name: str
    bandwidth: float
    link: Device = DEVICES["h200"]


GPUS = {"h200": Gpu("H200", 4.3e12), "h100": Gpu("H100", 3.0e12, DEVICES["h100"])}


@dataclass(frozen=True)
class Kernel:
    """Of a whole step, all layers together. `part`: the row of the table, None where it has none; `name`: as the
    profiler's kernels are labelled."""

    part: str | None
    name: str
    launches: int
    num_bytes: float
    flops: float
    seconds: float


def shard_of(shape: str, ranks: int) -> ModelShape:
    """What each of `ranks` devices has: its heads, its columns of the MLP, its part of the vocabulary."""
    of = ModelShape.of(shape)
    return replace(
        of, heads=of.heads // ranks, kv_heads=max(1, of.kv_heads // ranks), intermediate=of.intermediate // ranks,
        vocab=math.ceil(of.vocab / ranks),
    )  # fmt: skip


def products_of(shape: str, ranks: int = 1) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a layer's four products and of the head, on each of so many devices."""
    of = shard_of(shape, ranks)
    rows = of.heads * of.head_dim
    return {
        "qkv": (rows + 2 * of.kv_heads * of.head_dim, of.hidden),
        "o": (of.hidden, rows),
        "gate and up": (2 * of.intermediate, of.hidden),
        "down": (of.hidden, of.intermediate),
        "head": (of.vocab, of.hidden),
    }


def kernels(gpu: Gpu, contexts: Sequence[int], *, shape: str = SHAPE, ranks: int = 1) -> list[Kernel]:
    """In the order of a step. contexts: tokens of each sequence. ranks: devices that share each layer; of the first,
    which samples."""
    of, rows, pairs = shard_of(shape, ranks), len(contexts), sum(contexts)
    hidden, vocab, heads, kv_heads, size = of.hidden, of.vocab, of.heads, of.kv_heads, of.head_dim
    whole, summed_bytes = ModelShape.of(shape).vocab, rows * hidden * ITEM
    *sizes, _ = products_of(shape, ranks).values()
    # Token, position and slot of 8 bytes, length and place of 4, and the block table as wide as the longest sequence's.
    upload = rows * (4 * 8 + 4 * math.ceil(max(contexts) / BLOCK_SIZE))
    splits = choose_splits(rows, kv_heads, max(contexts), TILE_TOKENS)

    def small(part: str | None, name: str, launches: int, numbers: int) -> Kernel:
        num_bytes = rows * numbers * ITEM * launches
        return Kernel(part, name, launches, num_bytes, 0, launches * LAUNCH + num_bytes / gpu.bandwidth)

    def sums(count: int, seconds: float) -> list[Kernel]:
        return [Kernel("sums", OTHERS, count, count * summed_bytes, 0, seconds)] if ranks > 1 else []

    one_sum = gpu.link.all_reduce_seconds(summed_bytes, ranks)
    # Logits of the other ranks come to the one that samples.
    gather = gpu.link.sum_latency + (whole - vocab) * rows * ITEM / gpu.link.link
    attention = attention_seconds(gpu, contexts, kv_heads, 2 * size * ITEM) + ATTENTION_LAUNCH
    in_layers = [
        Kernel("attention", "decode", 1, pairs * 2 * kv_heads * size * ITEM, 4 * pairs * heads * size, attention),
        Kernel(
            "products", PRODUCT_KERNELS, len(sizes), sum(product_bytes(rows, n, k) for n, k in sizes),
            sum(2 * rows * n * k for n, k in sizes), sum(product_seconds(gpu, rows, n, k) for n, k in sizes),
        ),
        small(SMALL, "norms", 2, 4 * hidden),
        # q, k and v are read, q and k written where they were, K and V into the cache.
        small(SMALL, "rotation", 1, (2 * heads + 5 * kv_heads) * size),
        small(SMALL, "SwiGLU", 1, 3 * of.intermediate),
        small(None, "merge of splits", int(splits > 1), 2 * splits * heads * size),
        *sums(2, 2 * one_sum),
    ]  # fmt: skip
    once = [
        small(None, "norms", 1, 4 * hidden),
        Kernel(
            "head", PRODUCT_KERNELS, 1, product_bytes(rows, vocab, hidden), 2 * rows * vocab * hidden,
            product_seconds(gpu, rows, vocab, hidden),
        ),
        *sums(1, one_sum + gather),
        Kernel("sampling", "draw", 1, rows * whole * ITEM, 0, draw_seconds(gpu, rows, whole) + LAUNCH),
        Kernel("upload", OTHERS, UPLOAD_OPERATIONS, upload, 0, upload / HOST_LINK + UPLOAD_OPERATIONS * LAUNCH),
    ]  # fmt: skip
    summed = ("launches", "num_bytes", "flops", "seconds")
    return [replace(each, **{name: of.layers * getattr(each, name) for name in summed}) for each in in_layers] + once


def kernel_seconds(gpu: Gpu, shape: str, contexts: Sequence[int]) -> dict[str, float]:
    """Seconds a step, all layers together, by the kernels' names."""
    found = dict.fromkeys([*NAMES, OTHERS], 0.0)
    for kernel in kernels(gpu, contexts, shape=shape):
        found[kernel.name] += kernel.seconds
    return found


def label_of(kernel: str) -> str:
    """The name of a kernel here, by the one that a profiler gives it."""
    return next((label for label, named in NAMES.items() if re.search(named, kernel, re.IGNORECASE)), OTHERS)


def gpu_named(name: str, bandwidth: float) -> Gpu:
    """As it is known here; another one by the bandwidth that was measured, bytes/s."""
    return next((gpu for key, gpu in GPUS.items() if key in name.lower()), Gpu(name, bandwidth))


def product_bytes(rows: int, n: int, k: int) -> int:
    """[rows, k] times [k, n]: both read once, the result written."""
    return ITEM * (n * k + rows * k + rows * n)


def product_seconds(gpu: Gpu, rows: int, n: int, k: int) -> float:
    """The longer of its bytes and its waves of tiles of 128 × 128; an SM has one tile at a time."""
    tiles = math.ceil(rows / 128) * math.ceil(n / 128)
    wave = 2 * 128 * 128 * k / (PRODUCTS / SMS)
    compute = math.ceil(tiles / SMS) * wave * (1.0 if tiles >= FEW_TILES else FINER)
    return max(product_bytes(rows, n, k) / (COPY_SHARE * gpu.bandwidth), compute) + PRODUCT_LAUNCH


def codes_bytes(rows: int, n: int, k: int) -> int:
    """As product_bytes, with half a byte for each weight and a scale and an offset for each group."""
    return n * k // 2 + 5 * n * k // CODE_GROUP + ITEM * (rows * k + rows * n)


def codes_seconds(gpu: Gpu, rows: int, n: int, k: int) -> float:
    """The longest of its bytes, its instructions and its operations; if it is split, a second launch adds up sums."""
    plan = choose_plan(rows, n, math.ceil(k / 256), ITEM, invariant=False, small=False)
    tiles = math.ceil(rows / plan.rows)
    instructions = tiles * n * k * CODE_INSTRUCTIONS / (ISSUE_SHARE * ISSUES * SMS)
    compute = 2 * tiles * plan.rows * n * k / PRODUCTS
    found = max(codes_bytes(rows, n, k) / (COPY_SHARE * gpu.bandwidth), instructions, compute) + PRODUCT_LAUNCH
    return found if plan.splits == 1 else found + LAUNCH + 2 * 4 * plan.splits * rows * n / gpu.bandwidth


def draw_seconds(gpu: Gpu, rows: int, vocab: int) -> float:
    """The longer of its bytes and its instructions. A row is one program; no filters."""
    rounds = math.ceil(vocab / (DRAW_THREADS * DRAW_LOGITS))
    row = DRAW_THREADS * (rounds * DRAW_ROUND + DRAW_REST) / (ISSUE_SHARE * ISSUES)
    return max(rows * vocab * ITEM / (DRAW_SHARE * gpu.bandwidth), math.ceil(rows / SMS) * row)


def attention_seconds(gpu: Gpu, contexts: Sequence[int], kv_heads: int, head_bytes: int, room: int = 0) -> float:
    """One launch: the programs that the kernel makes of this batch, the longest first, by the model that its splits
    were chosen with (workshop/bench/decode_tail.py).

    Those that have a place share the bandwidth, each up to what it can ask for; the next one begins where one ends.
    When the last have begun, those that are left cannot use all of it: that is the tail. room: for sequences, that a
    graph has.
    """
    splits = choose_splits(max(len(contexts), room), kv_heads, max(contexts), TILE_TOKENS)
    programs = list_programs(sorted(contexts, reverse=True), kv_heads, splits, head_bytes, TILE_TOKENS)
    return TailModel(ATTENTION_SHARE * gpu.bandwidth).seconds(programs)
