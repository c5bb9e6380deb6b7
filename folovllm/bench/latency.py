"""One request at a time: how long to the first token, how long between tokens, how near that is to the floor.

The floor of a decode step is the time to read every weight once. Its share is

    roofline = (weight bytes / measured bandwidth) / median time per token

with the bandwidth measured between the runs, by this process, with as many threads (see roofline.py).

vLLM: benchmarks/latency.py
"""

from __future__ import annotations

import argparse
import statistics

from folovllm.bench.contestant import PeerSetup, Run, add_peers, check_peers
from folovllm.bench.metrics import percentiles_ms
from folovllm.bench.options import add_common, add_lengths, add_model, source
from folovllm.bench.report import Report, medians
from folovllm.bench.rounds import run_rounds
from folovllm.bench.workload import random_prompts, vocab_size

COLUMNS = [
    "engine", "dtype", "batch", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "itl_p50_ms", "itl_p95_ms",
    "itl_p99_ms", "decode_tokens_per_s", "prefill_speedup", "decode_speedup", "weights_gb", "bandwidth_gb_per_s",
    "roofline",
]  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "One request at a time: time to first token, time between tokens, share of the memory bandwidth."
    command.description = text
    add_model(command)
    add_peers(command)
    add_lengths(command, None, 128, 32)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    """Rounds of ours and the peers', the machine measured before each of them."""
    peers, length = check_peers(args.peers), args.input_len + args.output_len
    with source(args) as model:
        setup = PeerSetup(model, args.dtype, args.device, length, 1, vars(args))
        prompts = random_prompts([args.input_len] * (args.rounds + 1), vocab_size(model), args.seed)
        work = lambda number: ([prompts[number]], [args.output_len if number else 2])  # noqa: E731
        found = run_rounds(setup, peers, args.rounds, work)
    weights, bandwidth = found.cost.weights_read(1), found.probe.bandwidth
    sizes = {"prompt_tokens": args.input_len, "output_tokens": args.output_len, "batch": 1}
    lines = found.lines(args, _samples, **sizes, weights_gb=weights / 1e9, bandwidth_gb_per_s=bandwidth / 1e9)
    theirs = next((samples for facts, samples in lines if facts["engine"] == "hf"), None)
    for (facts, samples), runs in zip(lines, found.runs, strict=True):
        tpot = statistics.median(samples["tpot_ms"]) / 1e3
        facts |= percentiles_ms("itl", [step.seconds for run in runs for step in run if not step.prefill])
        facts |= {"decode_tokens_per_s": 1 / tpot}
        facts |= {"roofline": weights / bandwidth / tpot if found.from_memory else None}
        for speedup, column in (("prefill_speedup", "ttft_ms"), ("decode_speedup", "tpot_ms")):
            if theirs and samples is not theirs:
                facts[speedup] = statistics.median(theirs[column]) / statistics.median(samples[column])
    notes = [
        f"{medians(args.rounds, 'round')} after a warm-up, in turn.",
        "tpot: mean over a run's tokens after the first. speedup: Hugging Face's time over this one's.",
        "roofline: (weights / bandwidth) / tpot, the bandwidth measured between the runs.",
    ]
    if not found.from_memory:
        notes.append("The weights are small enough to stay in caches: no roofline.")
    return Report.of(args, f"Latency, {model.label}", COLUMNS, lines, notes + found.missing)


def _samples(runs: list[Run]) -> dict[str, list[float]]:
    gaps = [[step.seconds for step in run if not step.prefill] for run in runs]
    return {
        "ttft_ms": [run.prefill_seconds * 1e3 for run in runs],
        "tpot_ms": [statistics.mean(each) * 1e3 for each in gaps],
    }
