"""One decode step on a GPU, predicted part by part from the bytes that must move: what a measurement is held against.

The step is the first of nano-vllm's workload in which all 256 sequences decode, of Qwen3-0.6B in bfloat16. No GPU is
asked. What a kernel takes is in gpu_kernels.py. The whole workload is the sum of such steps, with fewer sequences as
they end, and the operations of its prompts.

vLLM: none
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from folovllm.attention.splits import SMS
from folovllm.bench.options import add_output
from folovllm.bench.report import Line, Report, Row
from folovllm.bench.shapes import ModelShape
from folovllm.utils.checks import wrong
from workshop.bench import gpu_adapters, gpu_changes, gpu_experts, gpu_goals, gpu_others
from workshop.bench.gpu_kernels import GPUS, SHAPE, Gpu, kernels
from workshop.bench.workload_steps import contexts_of_first_full_step, host_us, output_tokens, workload_seconds

COLUMNS = ["part", "launches", "megabytes", "gflop", "us", "share"]
PARALLEL_COLUMNS = ["seqs", "gpus", "attention", "products", "small kernels", "head", "sampling", "sums", "us", "gain"]
LARGE = "qwen3-8b"
PREDICTIONS = {
    "changes": gpu_changes.run, "goals": gpu_goals.run, "large": gpu_others.run, "experts": gpu_experts.run,
    "adapters": gpu_adapters.run,
}  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "One decode step of 256 sequences, Qwen3-0.6B on a GPU, predicted from bytes and operations; runs anywhere."
    command.description = text
    command.add_argument("--gpu", choices=["h200", "h100"], default="h200", help="for which one")
    text = "steps of Qwen3-8B on so many GPUs that share each layer, in place of all that"
    command.add_argument("--tensor-parallel-size", type=int, nargs="+", metavar="N", help=text)
    text = "on an H200: what each change brings, goals, steps of Qwen3-8B, of experts, of adapters"
    command.add_argument("--predict", choices=list(PREDICTIONS), help=text)
    add_output(command)


def run(args: argparse.Namespace) -> Report:
    args.neighbours = None  # whoever else computes here changes no prediction
    if args.predict is not None:
        report = PREDICTIONS[args.predict](args)
        report.hardware = {"predicted for": "H200"}
        return report
    if args.tensor_parallel_size:
        return run_parallel(args)
    machine, contexts = GPUS[args.gpu], contexts_of_first_full_step()
    parts = predict(machine, contexts)
    total = sum(row["us"] for row in parts)
    lines: list[Line] = [({**row, "share": row["us"] / total}, {}) for row in parts]
    seconds = workload_seconds(lambda each: float(sum(row["us"] for row in predict(machine, each))))
    notes = [
        f"A prediction: nothing was measured. {len(contexts)} sequences of {sum(contexts) / len(contexts):.0f} tokens "
        f"on average; together {total:,.0f} us. The bandwidth is a large copy's on such a GPU, bytes read and written.",
        f"The whole workload: {seconds:.2f} s, {output_tokens() / seconds:,.0f} tokens/s. The host takes "
        f"{host_us(len(contexts)):,.0f} us of a step, beside the device.",
    ]
    title = f"One decode step of {len(contexts)} sequences on an {machine.name}, predicted"
    report = Report.of(args, title, COLUMNS, lines, notes)
    report.hardware = {"predicted for": f"{machine.name}, {machine.bandwidth / 1e12:g} TB/s, {SMS} SMs"}
    return report


def run_parallel(args: argparse.Namespace) -> Report:
    """Decode steps on one GPU and on several, for batches of several sizes."""
    heads = ModelShape.of(LARGE).heads
    for ranks in args.tensor_parallel_size:
        if ranks < 1 or heads % ranks:
            raise wrong("tensor_parallel_size", f"divide the {heads} heads of Qwen3-8B", ranks)
    gpu, lines = GPUS[args.gpu], list[Line]()
    for seqs in gpu_changes.BATCHES:
        alone = 0.0
        for ranks in sorted({1, *args.tensor_parallel_size}):
            parts = {row["part"]: row["us"] for row in predict(gpu, [1024] * seqs, shape=LARGE, ranks=ranks)}
            total = sum(parts.values())
            alone = alone or total
            row = {"seqs": seqs, "gpus": ranks, "sums": 0.0, **parts, "us": total, "gain": alone / total}
            lines.append(({column: row[column] for column in PARALLEL_COLUMNS}, {}))
    notes = ["A prediction: nothing was measured. Microseconds; sequences of 1,024 tokens, Qwen3-8B in bfloat16."]
    title = f"Decode steps of Qwen3-8B on several {gpu.name}s, predicted"
    report = Report.of(args, title, PARALLEL_COLUMNS, lines, notes)
    link = f"{gpu.link.link / 1e9:g} GB/s between two"
    report.hardware = {"predicted for": f"{gpu.name}, {gpu.bandwidth / 1e12:g} TB/s, {link}"}
    return report


def predict(gpu: Gpu, contexts: Sequence[int], *, shape: str = SHAPE, ranks: int = 1) -> list[Row]:
    """A row for each part, in the order in which they run; `us` is over all layers."""
    rows: dict[str, Row] = {}
    for kernel in kernels(gpu, contexts, shape=shape, ranks=ranks):
        if kernel.part is not None:
            row = rows.setdefault(kernel.part, {"part": kernel.part} | dict.fromkeys(COLUMNS[1:-1], 0))
            values = (kernel.launches, kernel.num_bytes / 1e6, kernel.flops / 1e9, kernel.seconds * 1e6)
            for column, value in zip(COLUMNS[1:-1], values, strict=True):
                row[column] += value
    return list(rows.values())
