"""One request at a time: how long to the first token, how long between tokens.

vLLM: benchmarks/latency.py
"""

from __future__ import annotations

import argparse
import statistics

from folovllm.bench.metrics import percentiles_ms
from folovllm.bench.options import add_common, add_lengths, add_model, source
from folovllm.bench.report import Report, Row, Samples, medians
from folovllm.bench.runs import FoloVLLM, Run, Work, rounds_of
from folovllm.bench.workload import random_prompts, vocab_size

COLUMNS = [
    "dtype", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "itl_p50_ms", "itl_p95_ms", "itl_p99_ms",
    "decode_tokens_per_s",
]  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "One request at a time: time to first token, time between tokens."
    add_model(command)
    add_lengths(command, None, 128, 32)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    with source(args) as model:
        engine, vocab = FoloVLLM(model, args.dtype, args.device, args.input_len + args.output_len), vocab_size(model)
        runs = rounds_of(engine, args.rounds, lambda number: work(args, vocab, number))
    notes = [f"{medians(args.rounds, 'round')} after a warm-up.", "tpot: mean over a run's tokens after the first."]
    facts = {"dtype": args.dtype, "prompt_tokens": args.input_len, "output_tokens": args.output_len, **gaps(runs)}
    return Report.of(args, f"Latency, {model.label}", COLUMNS, [(facts, samples(runs))], notes)


def work(args: argparse.Namespace, vocab: int, number: int) -> Work:
    """Another prompt in each round; the warm-up makes two tokens."""
    return random_prompts([args.input_len], vocab, f"{args.seed} {number}"), [args.output_len if number else 2]


def gaps(runs: list[Run]) -> Row:
    """Of all rounds together."""
    row = percentiles_ms("itl", [step.seconds for run in runs for step in run if not step.prefill])
    return {**row, "decode_tokens_per_s": 1e3 / statistics.median(samples(runs)["tpot_ms"])}


def samples(runs: list[Run]) -> Samples:
    return {
        "ttft_ms": [run.prefill_seconds * 1e3 for run in runs],
        "tpot_ms": [statistics.mean(step.seconds for step in run if not step.prefill) * 1e3 for run in runs],
    }
