"""Several requests: tokens per second in prefill, in decode and over all, and what the KV cache holds of what it
reserves.

Peers take turns with the engine, round by round. One that takes a fixed number of prompts at a time runs them one
after the other and, where asked, in batches: which is the fair comparison depends on what it is used for.

vLLM: benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from folovllm.bench.contestant import Run
from folovllm.bench.lengths import Lengths
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed
from folovllm.bench.peers.apart import PeerSetup
from folovllm.bench.peers.registry import peer_names, require_peers
from folovllm.bench.race import Race, race
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import BenchModel, require_at_least, vocab_size
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
    text = "take turns with hf (Hugging Face's generate) or another: a wrong name lists all (default: none)"
    command.add_argument("--peer", action="append", default=[], dest="peers", metavar="PEER", help=text)
    text = "also let the peer take this many at a time"
    command.add_argument("--peer-batch-size", type=int, metavar="N", default=1, help=text)
    text = "for the peers vllm and vllm-compiled: the Python that has vLLM (default: this one)"
    command.add_argument("--peer-python", metavar="PATH", help=text)
    text = "for the peer llama-cpp: the same model as llama.cpp reads it (default: none)"
    command.add_argument("--gguf", metavar="FILE", help=text)
    text = "lengths from an eighth of --input-len and --output-len up to them, instead of all the same"
    command.add_argument("--mixed", action="store_true", help=text)
    text = "requests in each round"
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", default=4, help=text)
    command.add_argument("--input-len", type=int, metavar="N", default=32, help="prompt tokens of a request")
    command.add_argument("--output-len", type=int, metavar="N", default=32, help="new tokens of a request")
    add_rounds(command)
    add_seed(command)
    add_output(command)


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    quantization: str | None = None,
    quantize_head: bool = False,
    peers: Sequence[str] = (),
    peer_python: str | None = None,
    gguf: str | None = None,
    device: str | None = None,
    num_requests: int = 4,
    input_len: int = 32,
    output_len: int = 32,
    mixed: bool = False,
    peer_batch_size: int = 1,
    rounds: int = 3,
    seed: int = 0,
) -> Report:
    require_at_least(1, num_requests=num_requests, input_len=input_len, rounds=rounds, peer_batch_size=peer_batch_size)
    require_at_least(2, output_len=output_len)
    peers = peer_names(peers)
    require_peers(peers)
    lengths = make_lengths(num_requests, input_len, output_len, mixed=mixed, seed=seed)
    max_model_len = input_len + output_len
    setup = PeerSetup(
        model, dtype, device, max_model_len, num_requests, peer_batch_size, peer_python, gguf, quantization
    )
    vocab = vocab_size(model)

    def work(number: int) -> tuple[list[list[int]], list[int]]:
        # A fresh set in each round, so that nothing can be remembered. The warm-up takes as many requests: what they
        # use of buffers and blocks is then used for the first time before the clock runs.
        return lengths.make_prompts(vocab, f"{seed} {number}" if seed else number), lengths.outputs

    # Room for these requests, as vLLM's peer has it, and one block more for each that runs ahead. In a larger cache
    # each round would take blocks that none has used before, and the first use of memory is dear.
    room = num_requests * (-(-max_model_len // CacheConfig().block_size) + 1)
    options = {"quantization": quantization, "quantize_head": quantize_head}
    found = race(setup, peers, rounds, work, num_kv_blocks=room, **options)
    common = {"requests": num_requests}
    rows: list[Row] = [
        {"engine": one.name, **common, "batch": getattr(one, "batch_size", None)}
        | {"dtype": getattr(one, "dtype", None) or dtype}
        | _row(results, lengths)
        for one, results in zip(found.contestants, found.runs, strict=True)
    ]
    if quantization is not None:
        rows[0]["dtype"] = quantization + (", head in 8 bits" if quantize_head else "")
    rows[0]["bandwidth_gb_per_s"] = found.bandwidth / 1e9
    if found.from_memory:
        rows[0]["roofline"] = statistics.median(_roofline(run, found) for run in found.runs[0])
    for row in rows[1:]:
        row["speedup"] = row["seconds"] / rows[0]["seconds"]
    notes = _notes(found, rounds, input_len, output_len, mixed=mixed, seed=seed)
    rows = [{column: row[column] for column in COLUMNS} for row in rows]
    samples = [_samples(results, lengths) for results in found.runs]
    return Report("throughput", f"Throughput, {model.label}", command, COLUMNS, rows, notes, samples=samples)


def _notes(found: Race, rounds: int, input_len: int, output_len: int, *, mixed: bool, seed: int) -> list[str]:
    notes = [
        f"{medians(rounds, 'round')} after a warm-up, in turn.",
        "speedup: this row's seconds over folovllm's.",
        "roofline: of folovllm's decode, the time to read the weights once a step, at the bandwidth measured between "
        "the runs, over the time it took; K and V are not counted."
        if found.from_memory
        else "The weights are small enough to stay in caches: no roofline.",
        "batch: prompts that the peer takes at a time; folovllm schedules by itself.",
        *found.missing,
        "kv: tokens in folovllm's cache when most of them were used, and what was reserved for these sequences.",
    ]
    if mixed:
        (low, high), (least, most) = mixed_range(input_len, 1), mixed_range(output_len, 2)
        notes.append(
            f"Mixed lengths, uniform, seed {seed}: prompts of {low} to {high} tokens, outputs of {least} to {most}; "
            "the columns show the means."
        )
    return notes


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
    row: Row = {"prompt_tokens": _mean(lengths.prompts), "output_tokens": _mean(lengths.outputs), **medians}
    row |= dict.fromkeys(("speedup", "bandwidth_gb_per_s", "roofline"))
    for name in ("kv_reserved_tokens", "kv_used_tokens"):
        told = [getattr(result, name) for result in results if getattr(result, name) is not None]
        row[name] = round(statistics.median(told)) if told else None
    return row


def _roofline(run: Run, found: Race) -> float:
    """Of the steps that only decode: the floor of their weights over what they took."""
    steps = sum(not step.prefill for step in run)
    return steps * found.weight_bytes / found.bandwidth / run.decode_seconds


def _mean(values: list[int]) -> int | float:
    """A whole number where all are the same."""
    return values[0] if len(set(values)) == 1 else statistics.mean(values)
