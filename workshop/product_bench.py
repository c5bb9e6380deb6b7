"""How fast are a layer's products? Our compiled kernel and F.linear, in turn, for several numbers of rows.

    python -m workshop.product_bench --dtype bfloat16 --rows 1 8 128
    python -m workshop.product_bench --quantization w4a16 w4a8 w8a8 --threads 1 --rows 1 8 256

--avx2 compiles the kernels as a CPU with AVX2 and nothing wider gets them, which computes in float32.

Times are the process's own, over its threads: what other programs do in between does not count.

The weights are those of several layers, more than a core's caches hold, and each is read once a round: as in a step.

vLLM: none
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import folovllm  # noqa: F401  before torch: it sets how OpenMP's threads wait

# isort: split
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track

from folovllm.bench.report import Report
from folovllm.bench.workload import shape_config
from folovllm.layers.compiled_ops import CompiledLinear, compiled_unavailable_reason, multiplies_pairs
from folovllm.layers.linear import PLAIN, Linear
from folovllm.layers.quantization.codes import round_to_nearest
from folovllm.layers.quantization.compiled import CompiledQuantizedLinear
from folovllm.model_loader.quant_scheme import HEAD, ONLINE
from folovllm.utils import cpu_kernels

SHAPE, LAYERS, ROUNDS = "qwen3-0.6b", 6, 7
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
QUANTIZATIONS = (*(name for name, scheme in ONLINE.items() if scheme.type == "int"), "w8a16")
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def layer_of(weight: torch.Tensor) -> Linear:
    """A layer that multiplies by `weight` as the engine's layers do here."""
    compiled = weight.device.type == "cpu" and compiled_unavailable_reason(weight.dtype) is None
    layer = Linear(weight.shape[1], weight.shape[0], method=CompiledLinear() if compiled else PLAIN)
    layer.weight.data = weight
    layer.method.process_weights_after_loading(layer)
    return layer


def quantized(weight: torch.Tensor, name: str) -> Linear:
    scheme = ONLINE.get(name, HEAD)
    layer = Linear(weight.shape[1], weight.shape[0])
    layer.method = method = CompiledQuantizedLinear(scheme, name)
    method.keep(layer, round_to_nearest(weight, bits=scheme.bits, group_size=scheme.group_size, symmetric=True))
    return layer


def weight_shapes(shape: str) -> list[tuple[int, int]]:
    """(out, in) of a layer's four products, as the fused layers have them."""
    config = shape_config(shape)
    heads, kv_heads, hidden = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    q, kv = heads * config.head_dim, kv_heads * config.head_dim
    return [
        (q + 2 * kv, hidden),
        (hidden, q),
        (2 * config.intermediate_size, hidden),
        (hidden, config.intermediate_size),
    ]


def measure(
    dtype: torch.dtype, rows: tuple[int, ...], shape: str = SHAPE, quantizations: tuple[str, ...] = ()
) -> tuple[list[str], list[list[float]]]:
    """(names of the ways, milliseconds of a layer [rows, ways]), medians of several rounds. What the engine does here
    comes first. With `quantizations`, these instead of torch's."""
    weights = [(torch.randn(size) / size[1] ** 0.5).to(dtype) for size in weight_shapes(shape) * LAYERS]
    ways: dict[str, Callable[[int, torch.Tensor], object]] = {}
    if compiled_unavailable_reason(dtype) is None:
        layers = [layer_of(weight) for weight in weights]
        ways["compiled"] = lambda number, x: layers[number](x)
    for name in quantizations:
        ways[name] = _multiply([quantized(weight, name) for weight in weights])
    if not quantizations:
        ways["torch"] = lambda number, x: F.linear(x, weights[number])
    flowing = dtype if quantizations == () or multiplies_pairs(dtype) else torch.float32
    inputs = {size: torch.randn(max(rows), size).to(flowing) for size in {weight.shape[1] for weight in weights}}
    found = []
    with torch.inference_mode():
        for count in track(rows, "measuring"):
            runs: list[list[float]] = [[] for _ in ways]
            for turn in range(ROUNDS + 1):
                for multiply, run in zip(ways.values(), runs, strict=True):
                    start = time.process_time()
                    for number, weight in enumerate(weights):
                        multiply(number, inputs[weight.shape[1]][:count])
                    if turn:
                        run.append((time.process_time() - start) / LAYERS * 1e3)
            found.append([statistics.median(run) for run in runs])
    return list(ways), found


def _multiply(layers: list[Linear]) -> Callable[[int, torch.Tensor], object]:
    return lambda number, x: layers[number](x)


def report(command: str, rows: tuple[int, ...], names: list[str], found: list[list[float]], label: str) -> Report:
    columns = ["rows", *(f"{name}_ms" for name in names), *(f"{name}_per_{names[0]}" for name in names[1:])]
    table = [
        dict(zip(columns, [count, *times, *(times[0] / other for other in times[1:])], strict=True))
        for count, times in zip(rows, found, strict=True)
    ]
    notes = [
        f"The process's own milliseconds a layer, medians of {ROUNDS} rounds after a warm-up, in turn, on "
        f"{torch.get_num_threads()} thread(s).",
        f"…_per_{names[0]}: how many times as fast.",
    ]
    return Report("products", f"Products of a layer, {label}", command, columns, table, notes)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time the products of a layer by our kernel and by torch.")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--shape", default=SHAPE)
    parser.add_argument("--quantization", choices=QUANTIZATIONS, nargs="+", default=[])
    parser.add_argument("--avx2", action="store_true", help="kernels for a CPU that has no wider vectors")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    if min(chosen.rows) < 1:
        parser.error(f"argument --rows: must be positive, got {min(chosen.rows)}")
    torch.set_num_threads(chosen.threads)
    if chosen.avx2:
        cpu_kernels.NATIVE = ("-march=haswell", "-mprefer-vector-width=256")
    rows, given = tuple(chosen.rows), tuple(chosen.quantization)
    command = shlex.join(
        ["python", "-m", "workshop.product_bench", *(sys.argv[1:] if arguments is None else arguments)]
    )
    found = measure(DTYPES[chosen.dtype], rows, chosen.shape, given)
    label = f"{chosen.shape} shape, {chosen.dtype}" + (", kernels for AVX2" if chosen.avx2 else "")
    made = report(command, rows, *found, label)
    made.show(Console())
    if chosen.json:
        made.name = chosen.json.stem
        made.save(chosen.json)


if __name__ == "__main__":
    main()
