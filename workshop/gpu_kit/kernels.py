"""Single kernels in a loop, beside what is predicted for them: the draw, decode with other tiles, products.

    sampling    one launch of the draw, by batch and setting                        against time_line.draw_seconds
    tiles       one layer's decode, by BLOCK_N and stages                           against time_line.attention_seconds
    products    a layer's four products and the head, by rows                       against time_line.product_seconds
    codes       a layer's four products with weights of 4 and 8 bits, by rows       against time_line.codes_seconds

Each call reads other inputs than the one before, together more than the L2 cache holds. A CUDA graph replays the calls,
so that no launch of the host is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from folovllm.bench.roofline import Probe
from folovllm.bench.shapes import SHAPES
from folovllm.layers.linear import Linear
from folovllm.layers.quantization.cuda import Fp8Linear, Int8Linear, TritonCodesLinear
from folovllm.layers.quantization.linear import QuantizedLinear
from folovllm.models.weights import default_dtype
from folovllm.quant_scheme import ONLINE, QuantScheme
from folovllm.sample.gumbel import GumbelParams, host_params
from folovllm.sample.row import SamplingRow
from folovllm.sampling_params import SamplingParams
from workshop.bench import time_line
from workshop.bench.time_line import Gpu
from workshop.gpu_kit.predicted import gpu_named, products_of

Row = dict[str, Any]
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=0.6, top_k=50),
    "top_p": SamplingParams(temperature=0.6, top_p=0.9),
}
TILES = ((64, 5), (32, 5), (32, 7))
"""BLOCK_N and stages of decode; the first are those of tile.py for heads of 128 in 16 bits."""
ROUNDS = 5
CACHE_BYTES = 256 << 20  # of all inputs together: five times an H100's L2


def seconds_of(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Of one of `calls`, which run in turn; the median of some rounds."""
    for call in calls:
        call()  # compiles
        if device.type != "cuda":
            return _host_seconds(call)  # in the interpreter: the question is whether it runs
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    taken = []
    for _ in range(ROUNDS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 1e3 / len(calls))
    return statistics.median(taken[1:])


def _host_seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def copies(num_bytes: int) -> int:
    """How many inputs of this size a cache does not hold; a few at least, so that the launch counts once."""
    return min(64, max(4, CACHE_BYTES // max(num_bytes, 1)))


def sampling(args: argparse.Namespace, gpu: Gpu, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    vocab = SHAPES[args.shape]["vocab_size"]
    for batch in args.sizes:
        logits = [3 * torch.randn(batch, vocab, device=device).to(dtype) for _ in range(copies(2 * batch * vocab))]
        offsets = torch.arange(batch, device=device)
        for name, wanted in SETTINGS.items():
            rows = [SamplingRow(wanted, [], [], frozenset(), None) for _ in range(batch)]
            params = GumbelParams(torch.from_numpy(host_params(rows, range(batch), vocab)).to(device))
            seconds = seconds_of([partial(params.draw, x, offsets) for x in logits], device)
            predicted = time_line.draw_seconds(gpu, batch, vocab) + time_line.LAUNCH if name == "temperature" else None
            yield row(f"{name}, {batch} rows", seconds, predicted, batch * vocab * dtype.itemsize)


@contextmanager
def decode_tiles(block_n: int, stages: int) -> Iterator[None]:
    """A maker's experiment, in a process of its own: the kernel takes its tiles from these names."""
    from folovllm.attention.kernels import paged_decode

    with (
        patch.object(paged_decode, "tile_tokens", lambda *size: block_n),
        patch.object(paged_decode, "STAGES", stages),
    ):
        yield


def tiles(args: argparse.Namespace, gpu: Gpu, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    from folovllm.attention.kernels.paged_decode import paged_decode

    found = SHAPES[args.shape]
    heads, kv_heads, size = (found[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    for batch in args.sizes:
        per = -(-args.context // 16)
        num_bytes = 2 * batch * args.context * kv_heads * size * dtype.itemsize
        q = torch.randn(batch, heads, size, device=device).to(dtype)
        caches = [
            torch.randn(2, 1 + batch * per, 16, kv_heads, size, device=device, dtype=dtype)
            for _ in range(min(copies(num_bytes), 8))
        ]
        tables = 1 + torch.randperm(batch * per, device=device).int().view(batch, per)
        lens = torch.full((batch,), args.context, dtype=torch.int32, device=device)
        order = torch.arange(batch, dtype=torch.int32, device=device)
        for block_n, stages in TILES:
            attend = partial(paged_decode, q, block_tables=tables, seq_lens=lens, scale=size**-0.5, order=order)
            with decode_tiles(block_n, stages):
                calls = [partial(attend, key_cache=cache[0], value_cache=cache[1]) for cache in caches]
                seconds = seconds_of(calls, device)
            predicted = time_line.ATTENTION_LAUNCH + time_line.attention_seconds(
                gpu, [args.context] * batch, kv_heads, 2 * size * dtype.itemsize
            )
            yield row(f"BLOCK_N {block_n}, {stages} stages, {batch} sequences", seconds, predicted, num_bytes)


def products(args: argparse.Namespace, gpu: Gpu, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    for rows in args.sizes:
        for name, (n, k) in products_of(args.shape).items():
            x = torch.randn(rows, k, device=device).to(dtype)
            weights = [
                torch.randn(n, k, device=device).to(dtype) for _ in range(min(copies(n * k * dtype.itemsize), 16))
            ]
            seconds = seconds_of([partial(F.linear, x, weight) for weight in weights], device)
            predicted = time_line.product_seconds(gpu, rows, n, k)
            yield row(f"{name}, {rows} rows", seconds, predicted, time_line.product_bytes(rows, n, k))


SCHEMES: dict[str, tuple[type[QuantizedLinear], QuantScheme]] = {
    "w4a16": (TritonCodesLinear, ONLINE["w4a16"]),
    "w8a16": (TritonCodesLinear, QuantScheme("plain", 8, 128, True)),
    "w8a8": (Int8Linear, ONLINE["w8a8"]),
    "fp8": (Fp8Linear, ONLINE["fp8"]),
}


def codes(args: argparse.Namespace, gpu: Gpu, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    shapes = {name: size for name, size in products_of(args.shape).items() if name != "head"}
    for kind, (method, scheme) in SCHEMES.items():
        for name, (n, k) in shapes.items():
            weight_bytes = n * k * scheme.bits // 8
            count = min(copies(weight_bytes), 16) if device.type == "cuda" else 1  # interpreted, each takes a second
            layers = [quantized(method(scheme, name), n, k, device, dtype) for _ in range(count)]
            for rows in args.sizes:
                x = torch.randn(rows, k, device=device).to(dtype)
                seconds = seconds_of([partial(layer, x) for layer in layers], device)
                predicted = time_line.codes_seconds(gpu, rows, n, k) if kind == "w4a16" else None
                num_bytes = weight_bytes + dtype.itemsize * rows * (n + k)
                yield row(f"{kind} {name}, {rows} rows", seconds, predicted, num_bytes)


def quantized(method: QuantizedLinear, n: int, k: int, device: torch.device, dtype: torch.dtype) -> Linear:
    with device, default_dtype(dtype):
        layer = Linear(k, n, method=method)
    layer.weight.data = torch.randn(n, k, device=device).to(dtype)
    method.process_weights_after_loading(layer)
    return layer


def row(kernel: str, seconds: float, predicted: float | None, num_bytes: int) -> Row:
    return {
        "kernel": kernel,
        "us": 1e6 * seconds,
        "predicted_us": None if predicted is None else 1e6 * predicted,
        "gb_per_s": num_bytes / seconds / 1e9,
    }


KINDS = {"sampling": sampling, "tiles": tiles, "products": products, "codes": codes}


@torch.inference_mode()
def measure(args: argparse.Namespace) -> list[Row]:
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    probe = Probe(device, dtype)
    probe.measure(warm_up=True)
    probe.measure()
    gpu = gpu_named(torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU", probe.bandwidth)
    rows: list[Row] = []
    for found in KINDS[args.kind](args, gpu, device, dtype):
        rows.append(found)
        report = {"gpu": gpu.name, "copy_gb_per_s": statistics.median(probe.copy) / 1e9, "rows": rows}
        args.json.write_text(json.dumps(report), encoding="utf-8")  # what comes later may be cut off
        print(json.dumps(found), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="sequences, or rows")
    parser.add_argument("--context", type=int, default=1024, help="tokens of each sequence that decodes")
    parser.add_argument("--json", type=Path, required=True)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
