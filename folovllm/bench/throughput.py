"""Several requests: tokens per second in prefill, in decode and over all, and what the KV cache holds of what it
reserves.

Peers take turns with the engine, round by round. One that takes a fixed number of prompts at a time runs them one
after the other and, where asked, in batches: which is the fair comparison depends on what it is used for.

vLLM: benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from folovllm.bench import presets
from folovllm.bench.contestant import Contestant, FoloVLLM, Run, require_mixed, take_turns
from folovllm.bench.latency import weight_bytes_of
from folovllm.bench.lengths import Lengths
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed, command_line, source
from folovllm.bench.peers.registry import make_peers, peer_names, require_peers
from folovllm.bench.peers.setup import PeerSetup
from folovllm.bench.probe import Probe, exceeds_caches
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import BenchModel, dtype_of, progress_bar, require_at_least, vocab_size
from folovllm.config import CacheConfig

COLUMNS = [
    "engine",
    "dtype",
    "requests",
    "batch",
    "prompt_tokens",
    "output_tokens",
    "seconds",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "output_tokens_per_s",
    "speedup",
    "bandwidth_gb_per_s",
    "roofline",
    "kv_reserved_tokens",
    "kv_used_tokens",
]
KV_COLUMNS = COLUMNS[-2:]  # of an engine that tells
SHORTEST = 8  # mixed lengths begin at the N-th part of the longest


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Several requests at once: tokens per second in prefill, in decode and over all."
    add_model(command)
    text = "take turns with hf (Hugging Face's generate) or another (a wrong name is answered with all); several: A,B"
    command.add_argument("--peer", action="append", default=[], dest="peers", metavar="PEER", help=text)
    text = "also let the peer take this many at a time"
    command.add_argument("--peer-batch-size", type=int, metavar="N", default=1, help=text)
    text = "lengths from an eighth of --input-len and --output-len up to them, instead of all the same"
    command.add_argument("--mixed", action="store_true", help=text)
    # None is "not given": the benchmark has its own defaults for these, and says so below.
    text = "requests in each round (default: 4)"
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", help=text)
    command.add_argument("--input-len", type=int, metavar="N", help="prompt tokens of a request (default: 32)")
    command.add_argument("--output-len", type=int, metavar="N", help="new tokens of a request (default: 32)")
    presets.add_arguments(command)
    text = "for the peers vllm and vllm-compiled: the Python that has vLLM, in an environment of its own"
    command.add_argument("--peer-python", metavar="PATH", help=text)
    add_rounds(command)
    add_seed(command)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    presets.check_arguments(args)
    if args.preset is not None:
        return presets.from_args(args)
    names = ("num_requests", "input_len", "output_len")
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    options = {name: getattr(args, name) for name in ("device", "mixed", "peer_batch_size", "rounds", "seed")}
    with source(args) as model:
        return run(
            model,
            command=command_line(args),
            dtype=dtype_of(model, args.dtype, args.device),
            peers=peer_names(args.peers),
            peer_options=vars(args),
            **given,
            **options,
        )


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    peers: Sequence[str] = (),
    peer_options: Mapping[str, Any] | None = None,
    device: str | None = None,
    num_requests: int = 4,
    input_len: int = 32,
    output_len: int = 32,
    mixed: bool = False,
    peer_batch_size: int = 1,
    rounds: int = 3,
    seed: int = 0,
) -> Report:
    """`peer_options`: what was said of a single peer, by the option's name; the peer takes what is its own."""
    require_at_least(1, num_requests=num_requests, input_len=input_len, rounds=rounds, peer_batch_size=peer_batch_size)
    require_at_least(2, output_len=output_len)
    require_peers(peers)
    lengths = make_lengths(num_requests, input_len, output_len, mixed=mixed, seed=seed)
    max_model_len = input_len + output_len
    setup = PeerSetup(model, dtype, device, max_model_len, num_requests, peer_batch_size, peer_options or {})
    with setup.cleanup:
        with progress_bar(1 + len(peers)) as tick:
            tick("loading folovllm")
            # Room for these requests, as vLLM's peer has it, and one block more for each that runs ahead. In a larger
            # cache each round would take blocks that none has used before, and the first use of memory is dear.
            room = num_requests * (-(-max_model_len // CacheConfig().block_size) + 1)
            ours = FoloVLLM(model, dtype, device, max_model_len, num_kv_blocks=room)
            contestants: list[Contestant] = [ours]
            others, missing = make_peers(peers, setup, tick)
            contestants += others
        if mixed:
            require_mixed(contestants, "mixed")
        vocab, probe = vocab_size(model), Probe(ours.engine.device, ours.engine.dtype)

        def work(number: int) -> tuple[list[list[int]], list[int]]:
            # A fresh set in each round, so that nothing can be remembered. The warm-up takes as many requests: what
            # they use of buffers and blocks is then used for the first time before the clock runs.
            prompts = lengths.make_prompts(vocab, f"{seed} {number}" if seed else number, num_requests)
            return prompts, lengths.outputs

        with progress_bar((rounds + 1) * len(contestants)) as tick:
            runs = take_turns(contestants, rounds, work, tick, lambda warm_up: probe.measure(warm_up=warm_up))
    base = statistics.median(result.seconds for result in runs[0])
    rows: list[Row] = [
        {"engine": contestant.name, "dtype": dtype, "requests": num_requests}
        | {"batch": getattr(contestant, "batch_size", None)}
        | _row(results, lengths)
        for contestant, results in zip(contestants, runs, strict=True)
    ]
    weight_bytes = weight_bytes_of(ours)
    from_memory = exceeds_caches(weight_bytes, probe.device)
    rows[0]["bandwidth_gb_per_s"] = probe.bandwidth / 1e9
    if from_memory:
        rows[0]["roofline"] = statistics.median(_roofline(result, weight_bytes, probe.bandwidth) for result in runs[0])
    for row in rows[1:]:
        row["speedup"] = row["seconds"] / base
    notes = [
        f"{medians(rounds, 'round')} after a warm-up, in turn.",
        "speedup: this row's seconds over folovllm's.",
        "roofline: of folovllm's decode, the time to read the weights once a step, at the bandwidth measured between "
        "the runs, over the time it took; K and V are not counted."
        if from_memory
        else "The weights are small enough to stay in caches: no roofline.",
        "batch: prompts that the peer takes at a time; folovllm schedules by itself.",
    ]
    notes += missing
    columns = COLUMNS
    if rows[0]["kv_reserved_tokens"] is None:
        columns = [column for column in COLUMNS if column not in KV_COLUMNS]
    else:
        notes.append(
            "kv: tokens in folovllm's cache when most of them were used, and what was reserved for these sequences."
        )
    if mixed:
        (low, high), (least, most) = mixed_range(input_len, 1), mixed_range(output_len, 2)
        notes.append(
            f"Mixed lengths, uniform, seed {seed}: prompts of {low} to {high} tokens, outputs of {least} to {most}; "
            "the columns show the means."
        )
    rows = [{column: row[column] for column in columns} for row in rows]
    samples = [_samples(results, lengths) for results in runs]
    return Report("throughput", f"Throughput, {model.label}", command, columns, rows, notes, samples=samples)


def make_lengths(count: int, input_len: int, output_len: int, *, mixed: bool, seed: int = 0) -> Lengths:
    """Every request of these lengths, or uniform from an eighth of them up to them."""
    if not mixed:
        return Lengths.equal(count, input_len, output_len)
    return Lengths.uniform(count, mixed_range(input_len, 1), mixed_range(output_len, 2), seed)


def mixed_range(longest: int, least: int) -> tuple[int, int]:
    return max(least, longest // SHORTEST), longest


def _samples(results: list[Run], lengths: Lengths) -> dict[str, list[float]]:
    """Of one row: the column -> each round's figure, for `folovllm bench compare`."""
    return {
        "seconds": [result.seconds for result in results],
        "prefill_tokens_per_s": [sum(lengths.prompts) / result.prefill_seconds for result in results],
        "decode_tokens_per_s": [result.decode_tokens / result.decode_seconds for result in results],
        "output_tokens_per_s": [sum(lengths.outputs) / result.seconds for result in results],
    }


def _row(results: list[Run], lengths: Lengths) -> Row:
    medians = {name: statistics.median(values) for name, values in _samples(results, lengths).items()}
    reserved = [result.kv_reserved_tokens for result in results if result.kv_reserved_tokens is not None]
    used = [result.kv_used_tokens for result in results if result.kv_used_tokens is not None]
    return {
        "prompt_tokens": _mean(lengths.prompts),
        "output_tokens": _mean(lengths.outputs),
        **medians,
        "speedup": None,
        "bandwidth_gb_per_s": None,
        "roofline": None,
        "kv_reserved_tokens": round(statistics.median(reserved)) if reserved else None,
        "kv_used_tokens": round(statistics.median(used)) if used else None,
    }


def _roofline(run: Run, weight_bytes: int, bandwidth: float) -> float:
    """Of the steps that only decode: the floor of their weights over what they took."""
    steps = sum(not step.prefill for step in run)
    return steps * weight_bytes / bandwidth / run.decode_seconds


def _mean(values: list[int]) -> int | float:
    """A whole number where all are the same."""
    return values[0] if len(set(values)) == 1 else statistics.mean(values)
