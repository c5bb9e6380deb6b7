"""Decode steps under torch's profiler: the microseconds of every kernel of a replay, beside what is predicted for it.

Each batch is prefilled and draws at temperature 0.6, as the published workload does. Then some steps are profiled: what
a graph launches is told kernel by kernel, too. Without a GPU the same code tells torch's operators, to rehearse it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from folovllm.bench.contestant import make_engine
from folovllm.bench.roofline import Probe
from folovllm.bench.shapes import SHAPES
from folovllm.bench.workload import bench_model, random_prompts
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams
from workshop.gpu_kit.predicted import gpu_named, kernel_seconds, label_of

WARM_UP = 5


def profile_steps(
    engine: LLMEngine, batch: int, context: int, steps: int, vocab: int
) -> dict[str, tuple[float, float]]:
    """By kernel: (launches, microseconds) of one step in which `batch` sequences decode."""
    names = [f"{batch}-{number}" for number in range(batch)]
    params = SamplingParams(temperature=0.6, max_tokens=steps + WARM_UP + batch + 64, ignore_eos=True)
    for name, prompt in zip(names, random_prompts(batch, context, vocab, seed=batch), strict=True):
        engine.add_request(name, prompt, params)
    begun: set[str] = set()
    while len(begun) < batch:
        begun |= {output.request_id for output in engine.step()}
    for _ in range(WARM_UP):
        engine.step()
    on_gpu = engine.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as told:
        for _ in range(steps):
            engine.step()
        if on_gpu:
            torch.cuda.synchronize(engine.device)
    for name in names:
        engine.abort_request(name)
    while engine.has_unfinished_requests():
        engine.step()
    found = {}
    for event in told.key_averages():
        micros = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if micros > 0:
            found[event.key] = (event.count / steps, micros / steps)
    return found


def rows_of(batch: int, kernels: dict[str, tuple[float, float]], predicted: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each kind of kernel, those that were predicted and did not run too; the slowest first."""
    rows: dict[str, dict[str, Any]] = {
        label: {"batch": batch, "kernel": label, "launches": 0.0, "us": 0.0, "predicted_us": 1e6 * seconds}
        for label, seconds in predicted.items()
    }
    for name, (launches, micros) in kernels.items():
        row = rows[label_of(name)]
        row["launches"] += launches
        row["us"] += micros
    return sorted(rows.values(), key=lambda row: -row["us"])


def measure(args: argparse.Namespace) -> dict[str, Any]:
    vocab = SHAPES[args.shape]["vocab_size"]
    longest = args.context + args.steps + WARM_UP + max(args.batch_sizes) + 80
    with bench_model(None, args.shape) as model:
        engine = make_engine(
            model, args.dtype, args.device, max_model_len=longest, max_num_seqs=max(args.batch_sizes), block_size=16,
            num_kv_blocks=max(args.batch_sizes) * -(-longest // 16) + 1, async_scheduling=False,
        )  # fmt: skip
    probe = Probe(engine.device, engine.dtype)
    probe.measure(warm_up=True)
    probe.measure()
    name = torch.cuda.get_device_name(engine.device) if engine.device.type == "cuda" else "no GPU"
    gpu = gpu_named(name, probe.bandwidth)
    rows: list[dict[str, Any]] = []
    kernels: dict[str, Any] = {}
    for batch in args.batch_sizes:
        found = profile_steps(engine, batch, args.context, args.steps, vocab)
        contexts = [args.context + WARM_UP + args.steps // 2] * batch
        rows += rows_of(batch, found, kernel_seconds(gpu, args.shape, contexts))
        kernels[str(batch)] = found
        report = {"gpu": gpu.name, "bandwidth": gpu.bandwidth, "context": args.context, "rows": rows}
        report |= {"kernels": kernels}
        args.json.write_text(json.dumps(report), encoding="utf-8")  # what a later batch breaks is not lost
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--batch-sizes", type=int, nargs="+", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--json", type=Path, required=True)
    print(json.dumps(measure(parser.parse_args())["rows"], indent=1))


if __name__ == "__main__":
    main()
