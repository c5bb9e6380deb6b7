"""Several requests: tokens per second in prefill, in decode and over all, and what the KV cache holds of what it
reserves.

Peers take turns with the engine, round by round. One that takes a fixed number of prompts at a time runs them one
after the other and, where asked, in batches: which is the fair comparison depends on what it is used for.

vLLM: benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
import statistics

from folovllm.bench.contestant import PeerSetup, Run, Work, add_peers, check_peers
from folovllm.bench.options import add_common, add_lengths, add_model, at_least, source
from folovllm.bench.report import Report, medians
from folovllm.bench.rounds import Rounds, run_rounds
from folovllm.bench.workload import random_prompts, vocab_size
from folovllm.config import CacheConfig
from folovllm.entrypoints.cli.parser import HELP
from folovllm.quant_scheme import ONLINE

COLUMNS = [
    "engine", "dtype", "requests", "batch", "prompt_tokens", "output_tokens", "seconds", "prefill_tokens_per_s",
    "decode_tokens_per_s", "output_tokens_per_s", "speedup", "bandwidth_gb_per_s", "roofline", "kv_reserved_tokens",
    "kv_used_tokens",
]  # fmt: skip

IMPLS = ("auto", "folovllm", "transformers")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Several requests at once: tokens per second in prefill, in decode and over all."
    add_model(command)
    text = "round folovllm's weights (default: as the checkpoint has them)"
    command.add_argument("--quantization", choices=list(ONLINE), help=text)
    command.add_argument("--quantize-head", action="store_true", help=HELP["quantize_head"])
    command.add_argument("--model-impl", choices=IMPLS, default="auto", help=HELP["model_impl"])
    text = "of folovllm: " + HELP["tensor_parallel_size"]
    command.add_argument("--tensor-parallel-size", type=at_least(1), metavar="N", default=1, help=text)
    add_peers(command)
    add_lengths(command, 4, 32, 32)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    peers, count, longest = check_peers(args.peers), args.num_requests, args.input_len + args.output_len
    # Room for these requests, as vLLM's peer has it, and one block more for each that runs ahead. In a larger cache
    # each round would take blocks that none has used before, and the first use of memory is dear.
    options = {"num_kv_blocks": count * (-(-longest // CacheConfig().block_size) + 1)}
    options |= {name: getattr(args, name) for name in ("quantization", "quantize_head", "model_impl")}
    options |= {"tensor_parallel_size": args.tensor_parallel_size}
    with source(args) as model:
        setup = PeerSetup(model, args.dtype, args.device, longest, count, vars(args))
        vocab = vocab_size(model)

        def work(number: int) -> Work:
            # A fresh set in each round, so that nothing can be remembered. The warm-up takes as many requests: what
            # they use of buffers and blocks is then used for the first time before the clock runs.
            return random_prompts([args.input_len] * count, vocab, f"{args.seed} {number}"), [args.output_len] * count

        found = run_rounds(setup, peers, args.rounds, work, **options)

    def samples(runs: list[Run]) -> dict[str, list[float]]:
        return {
            "seconds": [run.seconds for run in runs],
            "prefill_tokens_per_s": [count * args.input_len / run.prefill_seconds for run in runs],
            "decode_tokens_per_s": [run.decode_tokens / run.decode_seconds for run in runs],
            "output_tokens_per_s": [count * args.output_len / run.seconds for run in runs],
        }

    sizes = {"requests": count, "prompt_tokens": args.input_len, "output_tokens": args.output_len}
    lines = found.lines(args, samples, **sizes)
    ours = lines[0][0]
    if args.quantization is not None:
        ours["dtype"] = args.quantization + (", head in 8 bits" if args.quantize_head else "")
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
