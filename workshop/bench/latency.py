"""`folovllm bench latency` beside peers, and how near a token's time is to the floor.

The floor of a decode step is the time to read every weight once. Its share is

    roofline = (weight bytes / measured bandwidth) / median time per token

with the bandwidth measured between the runs, by this process, with as many threads (see roofline.py).

vLLM: benchmarks/latency.py
"""

from __future__ import annotations

import argparse
import statistics

from folovllm.bench import latency
from folovllm.bench.options import source
from folovllm.bench.report import Report, medians
from folovllm.bench.workload import vocab_size
from workshop.bench.contestant import PeerSetup, add_peers, check_peers
from workshop.bench.rounds import run_rounds

COLUMNS = [
    "engine", "dtype", "batch", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "itl_p50_ms", "itl_p95_ms",
    "itl_p99_ms", "decode_tokens_per_s", "prefill_speedup", "decode_speedup", "weights_gb", "bandwidth_gb_per_s",
    "roofline",
]  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    latency.add_arguments(command)
    add_peers(command)


def run(args: argparse.Namespace) -> Report:
    """Rounds of ours and the peers', the machine measured before each of them."""
    peers, length = check_peers(args.peers), args.input_len + args.output_len
    with source(args) as model:
        setup = PeerSetup(model, args.dtype, args.device, length, 1, vars(args))
        vocab = vocab_size(model)
        found = run_rounds(setup, peers, args.rounds, lambda number: latency.work(args, vocab, number))
    weights, bandwidth = found.cost.weights_read(1), found.probe.bandwidth
    sizes = {"prompt_tokens": args.input_len, "output_tokens": args.output_len, "batch": 1}
    lines = found.lines(args, latency.samples, **sizes, weights_gb=weights / 1e9, bandwidth_gb_per_s=bandwidth / 1e9)
    theirs = next((samples for facts, samples in lines if facts["engine"] == "hf"), None)
    for (facts, samples), runs in zip(lines, found.runs, strict=True):
        tpot = statistics.median(samples["tpot_ms"]) / 1e3
        facts |= latency.gaps(runs)
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
