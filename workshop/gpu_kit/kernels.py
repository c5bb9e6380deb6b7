"""Single kernels in a loop, and those of whole decode steps, beside what gpu_kernels.py predicts for them.

    sampling    one launch of the draw, by batch and setting                        against draw_seconds
    products    a layer's four products and the head, by rows                       against product_seconds
    codes       a layer's four products with weights of 4 and 8 bits, by rows       against codes_seconds
    profile     decode steps under torch's profiler, kernel by kernel               against kernel_seconds

Of the first three, each call reads other inputs than the one before, together more than the L2 cache holds. A CUDA
graph replays the calls, so that no launch of the host is measured. A profile's batches are prefilled and draw at
temperature 0.6, as the published workload does; without a GPU it has torch's operators, to rehearse it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from folovllm.bench.runs import make_engine
from folovllm.bench.shapes import SHAPES
from folovllm.bench.workload import bench_model
from folovllm.layers.linear import Linear
from folovllm.layers.quantization.cuda import Fp8Linear, Int8Linear, TritonCodesLinear
from folovllm.layers.quantization.linear import QuantizedLinear
from folovllm.model_loader.quant_scheme import ONLINE, QuantScheme
from folovllm.models.weights import default_dtype
from folovllm.sample.gumbel import GumbelParams, host_params
from folovllm.sample.row import SamplingRow
from folovllm.sampling_params import SamplingParams
from workshop.bench.decode import WARM_UP_STEPS, DecodingBatch
from workshop.bench.gpu_kernels import (
    LAUNCH,
    Gpu,
    codes_seconds,
    draw_seconds,
    gpu_named,
    kernel_seconds,
    label_of,
    product_bytes,
    product_seconds,
    products_of,
)  # fmt: skip
from workshop.bench.roofline import Probe
from workshop.bench.timer import Timer

Row = dict[str, Any]
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=0.6, top_k=50),
    "top_p": SamplingParams(temperature=0.6, top_p=0.9),
    "both": SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
}
SCHEMES: dict[str, tuple[type[QuantizedLinear], QuantScheme]] = {
    "w4a16": (TritonCodesLinear, ONLINE["w4a16"]),
    "w8a16": (TritonCodesLinear, QuantScheme("plain", 8, 128, True)),
    "w8a8": (Int8Linear, ONLINE["w8a8"]),
    "fp8": (Fp8Linear, ONLINE["fp8"]),
}
ROUNDS = 5
CACHE_BYTES = 256 << 20  # of all inputs together: five times an H100's L2


def seconds_of(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Of one of `calls`, which run in turn; the median of some rounds. In the interpreter one call of one round: the
    question is whether it runs."""
    on_gpu = device.type == "cuda"
    chosen = calls if on_gpu else calls[:1]
    timer = Timer(lambda: [call() for call in chosen], device, graph=True)
    return statistics.median(timer.seconds() for _ in range(ROUNDS if on_gpu else 1)) / len(chosen)


def copies(num_bytes: int, most: int = 16) -> int:
    """How many inputs of this size a cache does not hold; a few at least, so that the launch counts once."""
    return min(most, max(4, CACHE_BYTES // max(num_bytes, 1)))


def sampling(args: argparse.Namespace, gpu: Gpu, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    vocab = SHAPES[args.shape]["vocab_size"]
    for batch in args.sizes:
        count = copies(2 * batch * vocab, 64)
        logits = [3 * torch.randn(batch, vocab, device=device).to(dtype) for _ in range(count)]
        offsets = torch.arange(batch, device=device)
        for name, wanted in SETTINGS.items():
            rows = [SamplingRow(wanted, [], [], frozenset(), None) for _ in range(batch)]
            params = GumbelParams(torch.from_numpy(host_params(rows, range(batch), vocab)).to(device))
            seconds = seconds_of([partial(params.draw, x, offsets) for x in logits], device)
            predicted = draw_seconds(gpu, batch, vocab) + LAUNCH if name == "temperature" else None
            yield row(f"{name}, {batch} rows", seconds, predicted, batch * vocab * dtype.itemsize)


def products(args: argparse.Namespace, gpu: Gpu, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    for rows in args.sizes:
        for name, (n, k) in products_of(args.shape).items():
            x = torch.randn(rows, k, device=device).to(dtype)
            weights = [torch.randn(n, k, device=device).to(dtype) for _ in range(copies(n * k * dtype.itemsize))]
            seconds = seconds_of([partial(F.linear, x, weight) for weight in weights], device)
            yield row(f"{name}, {rows} rows", seconds, product_seconds(gpu, rows, n, k), product_bytes(rows, n, k))


def codes(args: argparse.Namespace, gpu: Gpu, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    shapes = {name: size for name, size in products_of(args.shape).items() if name != "head"}
    for kind, (method, scheme) in SCHEMES.items():
        for name, (n, k) in shapes.items():
            weight_bytes = n * k * scheme.bits // 8
            count = copies(weight_bytes) if device.type == "cuda" else 1  # interpreted, each takes a second
            layers = [quantized(method(scheme, name), n, k, device, dtype) for _ in range(count)]
            for rows in args.sizes:
                x = torch.randn(rows, k, device=device).to(dtype)
                seconds = seconds_of([partial(layer, x) for layer in layers], device)
                predicted = codes_seconds(gpu, rows, n, k) if kind == "w4a16" else None
                num_bytes = weight_bytes + dtype.itemsize * rows * (n + k)
                yield row(f"{kind} {name}, {rows} rows", seconds, predicted, num_bytes)


def quantized(method: QuantizedLinear, n: int, k: int, device: torch.device, dtype: torch.dtype) -> Linear:
    with device, default_dtype(dtype):
        layer = Linear(k, n, method=method)
    layer.weight.data = torch.randn(n, k, device=device).to(dtype)
    method.process_weights_after_loading(layer)
    return layer


def row(kernel: str, seconds: float, predicted: float | None, num_bytes: int) -> Row:
    predicted_us = None if predicted is None else 1e6 * predicted
    return {"kernel": kernel, "us": 1e6 * seconds, "predicted_us": predicted_us, "gb_per_s": num_bytes / seconds / 1e9}


def profiled(args: argparse.Namespace, gpu: Gpu, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    vocab, most, steps = SHAPES[args.shape]["vocab_size"], max(args.sizes), args.steps
    longest = args.context + steps + WARM_UP_STEPS + most + 80
    with bench_model(None, args.shape) as model:
        engine = make_engine(
            model, args.dtype, args.device, max_model_len=longest, max_num_seqs=most, block_size=16,
            num_kv_blocks=most * -(-longest // 16) + 1, async_scheduling=False,
        )  # fmt: skip
    on_gpu = device.type == "cuda"
    for batch in args.sizes:
        sequences = DecodingBatch(engine, batch, args.context, vocab, temperature=0.6)
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
            for _ in range(steps):
                engine.step()
            if on_gpu:
                torch.cuda.synchronize(device)
        sequences.end()
        kernels = {
            event.key: (event.count / steps, micros / steps)
            for event in found.key_averages()
            if (micros := event.self_device_time_total if on_gpu else event.self_cpu_time_total) > 0
        }
        contexts = [args.context + WARM_UP_STEPS + steps // 2] * batch
        yield from rows_of(batch, kernels, kernel_seconds(gpu, args.shape, contexts))


def rows_of(batch: int, kernels: dict[str, tuple[float, float]], predicted: dict[str, float]) -> list[Row]:
    """A row for each kind of kernel, those that were predicted and did not run too; the slowest first.

    kernels: (launches, microseconds) of one step, by the profiler's name."""
    rows: dict[str, Row] = {
        label: {"batch": batch, "kernel": label, "launches": 0.0, "us": 0.0, "predicted_us": 1e6 * seconds}
        for label, seconds in predicted.items()
    }
    for name, (launches, micros) in kernels.items():
        rows[label_of(name)]["launches"] += launches
        rows[label_of(name)]["us"] += micros
    return sorted(rows.values(), key=lambda row: -row["us"])


KINDS = {"sampling": sampling, "products": products, "codes": codes, "profile": profiled}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="sequences, or rows")
    parser.add_argument("--context", type=int, default=512, help="profile: tokens of each sequence")
    parser.add_argument("--steps", type=int, default=8, help="profile: steps of each batch")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    probe = Probe(device, dtype)
    probe.measure(warm_up=True)
    probe.measure()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    gpu = gpu_named(name, probe.bandwidth)
    rows: list[Row] = []
    for found in KINDS[args.kind](args, gpu, device, dtype):
        rows.append(found)
        report: Row = {"gpu": gpu.name, "copy_gb_per_s": statistics.median(probe.copy) / 1e9, "rows": rows}
        report |= {"context": args.context} if args.kind == "profile" else {}
        args.json.write_text(json.dumps(report), encoding="utf-8")  # what comes later may be cut off
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
