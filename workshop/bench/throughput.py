"""`folovllm bench throughput` beside peers, and what the KV cache holds of what it reserves.

Peers take turns with the engine, round by round. One that takes a fixed number of prompts at a time runs them one
after the other and, where asked, in batches: which is the fair comparison depends on what it is used for.

vLLM: benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
import statistics

from folovllm.bench import throughput
from folovllm.bench.options import source
from folovllm.bench.report import Report, medians
from folovllm.bench.workload import vocab_size
from workshop.bench.contestant import PeerSetup, add_peers, check_peers
from workshop.bench.rounds import Rounds, run_rounds

COLUMNS = [
    "engine", "dtype", "requests", "batch", "prompt_tokens", "output_tokens", "seconds", "prefill_tokens_per_s",
    "decode_tokens_per_s", "output_tokens_per_s", "speedup", "bandwidth_gb_per_s", "roofline", "kv_reserved_tokens",
    "kv_used_tokens",
]  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    throughput.add_arguments(command)
    add_peers(command)


def run(args: argparse.Namespace) -> Report:
    peers, count, longest = check_peers(args.peers), args.num_requests, args.input_len + args.output_len
    with source(args) as model:
        setup = PeerSetup(model, args.dtype, args.device, longest, count, vars(args))
        vocab, options = vocab_size(model), throughput.engine_options(args)
        found = run_rounds(setup, peers, args.rounds, lambda number: throughput.work(args, vocab, number), **options)
    facts = throughput.facts(args)
    dtype = facts.pop("dtype")
    lines = found.lines(args, lambda runs: throughput.samples(args, runs), **facts)
    ours = lines[0][0]
    ours["dtype"] = dtype
    for name in ("kv_reserved_tokens", "kv_used_tokens"):
        ours[name] = round(statistics.median(getattr(run, name) for run in found.runs[0]))
    ours["bandwidth_gb_per_s"] = found.probe.bandwidth / 1e9
    if found.from_memory:
        weights = found.cost.weights_read(count) / found.probe.bandwidth
        shares = (weights * sum(not step.prefill for step in run) / run.decode_seconds for run in found.runs[0])
        ours["roofline"] = statistics.median(shares)
    for facts, measured in lines[1:]:
        facts["speedup"] = statistics.median(measured["seconds"]) / statistics.median(lines[0][1]["seconds"])
    return Report.of(args, f"Throughput, {model.label}", COLUMNS, lines, _notes(args, found))


def _notes(args: argparse.Namespace, found: Rounds) -> list[str]:
    return [
        f"{medians(args.rounds, 'round')} after a warm-up, in turn.",
        "speedup: this row's seconds over folovllm's.",
        "roofline: of folovllm's decode, the time to read the weights once a step, at the bandwidth measured between "
        "the runs, over the time it took; K and V are not counted."
        if found.from_memory
        else "The weights are small enough to stay in caches: no roofline.",
        *found.missing,
        "kv: tokens in folovllm's cache when most of them were used, and what was reserved for these sequences.",
    ]
