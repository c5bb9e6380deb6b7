"""Several requests: tokens per second in prefill, in decode and over all, and what the KV cache holds of what it
reserves.

Peers take turns with the engine, round by round. One that takes a fixed number of prompts at a time runs them one
after the other and, where asked, in batches: which is the fair comparison depends on what it is used for.

vLLM: benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
import statistics

from folovllm.bench.contestant import Run, Work
from folovllm.bench.lengths import Lengths
from folovllm.bench.options import add_common, add_lengths, add_model, add_number, source
from folovllm.bench.peers.apart import PeerSetup
from folovllm.bench.peers.registry import add_peers, check_peers
from folovllm.bench.race import Race, median, race
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import vocab_size
from folovllm.config import CacheConfig
from folovllm.entrypoints.cli.parser import HELP
from folovllm.quant_scheme import ONLINE

COLUMNS = [
    "engine", "dtype", "requests", "batch", "prompt_tokens", "output_tokens", "seconds", "prefill_tokens_per_s",
    "decode_tokens_per_s", "output_tokens_per_s", "speedup", "bandwidth_gb_per_s", "roofline", "kv_reserved_tokens",
    "kv_used_tokens",
]  # fmt: skip
SHORTEST = 8  # mixed lengths begin at the N-th part of the longest


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Several requests at once: tokens per second in prefill, in decode and over all."
    add_model(command)
    text = "round folovllm's weights (default: as the checkpoint has them)"
    command.add_argument("--quantization", choices=list(ONLINE), help=text)
    command.add_argument("--quantize-head", action="store_true", help=HELP["quantize_head"])
    add_peers(command)
    add_number(command, "--peer-batch-size", default=1, help="also let the peer take this many at a time")
    text = "lengths from an eighth of --input-len and --output-len up to them, instead of all the same"
    command.add_argument("--mixed", action="store_true", help=text)
    add_lengths(command, 4, 32, 32)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    peers, count, seed = check_peers(args.peers), args.num_requests, args.seed
    lengths = make_lengths(args)
    longest = args.input_len + args.output_len
    # Room for these requests, as vLLM's peer has it, and one block more for each that runs ahead. In a larger cache
    # each round would take blocks that none has used before, and the first use of memory is dear.
    options = {"num_kv_blocks": count * (-(-longest // CacheConfig().block_size) + 1)}
    options |= {"quantization": args.quantization, "quantize_head": args.quantize_head}
    with source(args) as model:
        setup = PeerSetup(model, args.dtype, args.device, longest, count, vars(args))
        vocab = vocab_size(model)

        def work(number: int) -> Work:
            # A fresh set in each round, so that nothing can be remembered. The warm-up takes as many requests: what
            # they use of buffers and blocks is then used for the first time before the clock runs.
            return lengths.make_prompts(vocab, f"{seed} {number}" if seed else number), lengths.outputs

        found = race(setup, peers, args.rounds, work, **options)
    lines: list[tuple[Row, dict[str, list[float]]]] = []
    for contestant, runs in zip(found.contestants, found.runs, strict=True):
        facts: Row = {"engine": contestant.name, "requests": count, "batch": getattr(contestant, "batch_size", None)}
        facts |= {"dtype": getattr(contestant, "dtype", None) or args.dtype}
        facts |= {"prompt_tokens": _mean(lengths.prompts), "output_tokens": _mean(lengths.outputs)}
        for name in ("kv_reserved_tokens", "kv_used_tokens"):
            middle = median([getattr(run, name) for run in runs])
            facts[name] = None if middle is None else round(middle)
        lines.append((facts, _samples(runs, lengths)))
    if args.quantization is not None:
        lines[0][0]["dtype"] = args.quantization + (", head in 8 bits" if args.quantize_head else "")
    lines[0][0]["bandwidth_gb_per_s"] = found.probe.bandwidth / 1e9
    lines[0][0]["roofline"] = median([found.roofline(run) for run in found.runs[0]])
    ours = statistics.median(lines[0][1]["seconds"])
    for facts, samples in lines[1:]:
        facts["speedup"] = statistics.median(samples["seconds"]) / ours
    return Report.of(args, f"Throughput, {model.label}", COLUMNS, lines, _notes(args, found))


def _notes(args: argparse.Namespace, found: Race) -> list[str]:
    notes = [
        f"{medians(args.rounds, 'round')} after a warm-up, in turn.",
        "speedup: this row's seconds over folovllm's.",
        "roofline: of folovllm's decode, the time to read the weights once a step, at the bandwidth measured between "
        "the runs, over the time it took; K and V are not counted."
        if found.from_memory
        else "The weights are small enough to stay in caches: no roofline.",
        "batch: prompts that the peer takes at a time; folovllm schedules by itself.",
        *found.missing,
        "kv: tokens in folovllm's cache when most of them were used, and what was reserved for these sequences.",
    ]
    if args.mixed:
        (low, high), (least, most) = mixed_range(args.input_len, 1), mixed_range(args.output_len, 2)
        notes.append(
            f"Mixed lengths, uniform, seed {args.seed}: prompts of {low} to {high} tokens, outputs of {least} to "
            f"{most}; the columns show the means."
        )
    return notes


def make_lengths(args: argparse.Namespace) -> Lengths:
    """Every request of these lengths, or uniform from an eighth of them up to them."""
    if not args.mixed:
        return Lengths.equal(args.num_requests, args.input_len, args.output_len)
    ranges = mixed_range(args.input_len, 1), mixed_range(args.output_len, 2)
    return Lengths.uniform(args.num_requests, *ranges, args.seed)


def mixed_range(longest: int, least: int) -> tuple[int, int]:
    return max(least, longest // SHORTEST), longest


def _samples(runs: list[Run], lengths: Lengths) -> dict[str, list[float]]:
    return {
        "seconds": [run.seconds for run in runs],
        "prefill_tokens_per_s": [sum(lengths.prompts) / run.prefill_seconds for run in runs],
        "decode_tokens_per_s": [run.decode_tokens / run.decode_seconds for run in runs],
        "output_tokens_per_s": [sum(lengths.outputs) / run.seconds for run in runs],
    }


def _mean(values: list[int]) -> int | float:
    """A whole number where all are the same."""
    return values[0] if len(set(values)) == 1 else statistics.mean(values)
