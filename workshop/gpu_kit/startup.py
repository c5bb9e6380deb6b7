"""The machine; and one engine from its process's first moment to its first token, and the memory it takes against what
it was given.

    process ── imports ── engine built ── first token ── second request's first token ── a load as large as allowed
                                                                                         └ memory looked at each step

The load has all that takes room: as many sequences as run at once, prompts that fill every step, log-probabilities.

vLLM: vllm bench startup
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from folovllm.bench.report import Report
from folovllm.bench.runs import make_engine
from folovllm.bench.shapes import SHAPES
from folovllm.bench.workload import BenchModel, bench_model, random_prompts, vocab_size
from folovllm.engine.builder import engine_core as build
from folovllm.engine.builder.components import Components
from folovllm.engine.builder.kernel_check import check_kernels
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints.cli.machine import hardware, versions
from folovllm.sampling_params import SamplingParams

COLUMNS = [
    "dtype", "imports_s", "build_s", "check_s", "check_again_s", "first_token_s", "ready_s", "later_first_token_ms",
    "asked_gib", "started_gib", "peak_gib", "kv_cache_gib", "graphs_gib", "graph_sizes", "host_peak_gib",
]  # fmt: skip
GIB = 2**30
QUERY = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"


def machine(device: str) -> dict[str, Any]:
    """Which machine this is, and which versions. Raises SystemExit: torch has no such device."""
    found: dict[str, Any] = {"hardware": hardware(), "versions": versions()}
    with suppress(PackageNotFoundError):
        found["versions"]["triton"] = version("triton")
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise SystemExit("torch sees no CUDA device here")
        torch.ones(1, device=device).sum().item()  # that it is there does not say that it works
        if shutil.which("nvidia-smi"):
            argv = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
            said = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout
            values = (value.strip() for value in said.partition("\n")[0].split(","))
            found["nvidia_smi"] = dict(zip(QUERY.split(","), values, strict=False))
    return found


def since_process_began() -> float:
    """Seconds; Linux counts a process's beginning in hundredths of a second from the machine's."""
    began = float(Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / 100


def measure(model: BenchModel, args: argparse.Namespace) -> Report:
    imported = since_process_began()
    start = time.perf_counter()
    with patch.object(build, "check_kernels", TimedCheck()) as check:
        sizes = {"max_model_len": args.max_model_len, "max_num_seqs": args.sequences}
        engine = make_engine(model, args.dtype, args.device, **sizes)
    built = time.perf_counter() - start - check.again
    first = first_token(engine, vocab_size(model), seed=1)
    ready = since_process_began()
    later = first_token(engine, vocab_size(model), seed=2)
    started = used_gib(engine.device)
    peak = run_load(engine, vocab_size(model), args)
    cache, graphs, limits = engine.core.cache_size, engine.runner.graphs, engine.config.cache_config
    total = torch.cuda.get_device_properties(engine.device).total_memory if engine.device.type == "cuda" else None
    values = (
        args.dtype, imported, built, check.first, check.again, first, ready, later * 1e3,
        None if total is None else limits.gpu_memory_utilization * total / GIB, started, peak,
        cache.num_blocks * cache.block_bytes / GIB, graphs.pool_bytes / GIB if graphs else None,
        len(graphs.sizes) if graphs else 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )  # fmt: skip
    row = dict(zip(COLUMNS, values, strict=True))
    notes = [
        "build: with one kernel check in it, which compiles what it checks; the second finds all of it compiled. "
        "ready: from the process's beginning to the first token of its first request, of 32 tokens. Memory is what the "
        "whole GPU has in use, other processes' included; asked: gpu_memory_utilization of all of it.",
        f"Load: {args.sequences} sequences of {args.prompt_len} tokens in and {args.output_len} out, every eighth with "
        "20 log-probabilities.",
    ]
    return Report("startup", f"Start-up, {model.label}", "python -m workshop.gpu_kit", COLUMNS, [row], notes)


class TimedCheck:
    """In the place of check_kernels(), which compiles: it runs twice, the second time with everything compiled."""

    first = again = 0.0  # seconds

    def __call__(self, *args: Any) -> Components:
        start = time.perf_counter()
        parts = check_kernels(*args)
        middle = time.perf_counter()
        check_kernels(*args)
        self.first, self.again = middle - start, time.perf_counter() - middle
        return parts


def first_token(engine: LLMEngine, vocab: int, seed: int) -> float:
    """Seconds from a request's coming to its first token, alone; it is then run to its end."""
    (prompt,) = random_prompts([32], vocab, seed)
    start = time.perf_counter()
    engine.add_request(f"first-{seed}", prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    while not engine.step():
        pass
    seconds = time.perf_counter() - start
    while engine.has_unfinished_requests():
        engine.step()
    return seconds


def used_gib(device: torch.device) -> float | None:
    """What is in use of a GPU's memory."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / GIB


def run_load(engine: LLMEngine, vocab: int, args: argparse.Namespace) -> float | None:
    """The most memory that was in use at the end of any step."""
    for number, prompt in enumerate(random_prompts([args.prompt_len] * args.sequences, vocab, seed=3)):
        params = SamplingParams(
            temperature=0.8, top_p=0.9 if number % 2 else 1.0, logprobs=None if number % 8 else 20,
            max_tokens=args.output_len, ignore_eos=True, detokenize=False,
        )  # fmt: skip
        engine.add_request(f"load-{number}", prompt, params)
    peak = used_gib(engine.device)
    while engine.has_unfinished_requests():
        engine.step()
        if peak is not None:
            peak = max(peak, used_gib(engine.device) or 0.0)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), help="of the engine; without one the machine is described")
    parser.add_argument("--dtype")
    parser.add_argument("--device", required=True)
    for name in ("--sequences", "--prompt-len", "--output-len", "--max-model-len"):
        parser.add_argument(name, type=int)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    if args.shape is None:
        args.json.write_text(json.dumps(machine(args.device), ensure_ascii=False), encoding="utf-8")
        return
    with bench_model(None, args.shape) as model:
        report = measure(model, args)
    report.save(args.json)
    print(report.to_json())


if __name__ == "__main__":
    main()
