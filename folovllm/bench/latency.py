"""One request at a time: how long to the first token, how long between tokens, how near that is to the floor.

The floor of a decode step is the time to read every weight once. Its share is

    roofline = (weight bytes / measured bandwidth) / median time per token

with the bandwidth measured between the runs, by this process, with as many threads (see probe.py).

vLLM: benchmarks/latency.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from folovllm.bench.contestant import Run
from folovllm.bench.metrics import percentile
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed
from folovllm.bench.peers.apart import PeerSetup
from folovllm.bench.peers.registry import require_peers
from folovllm.bench.race import race
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import (
    BenchModel,
    random_prompts,
    require_at_least,
    vocab_size,
)

COLUMNS = [
    "engine", "dtype", "batch", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "itl_p50_ms", "itl_p95_ms",
    "itl_p99_ms", "decode_tokens_per_s", "prefill_speedup", "decode_speedup", "weights_gb", "bandwidth_gb_per_s",
    "roofline",
]  # fmt: skip


@dataclass
class Samples:
    """What the rounds of one contestant gave."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    """Mean time per token after the first, one for each round."""
    gaps: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Samples:
        samples = cls()
        for run in runs:
            gaps = [step.seconds for step in run if not step.prefill]
            samples.ttft.append(run.prefill_seconds)
            samples.tpot.append(statistics.mean(gaps))
            samples.gaps += gaps
        return samples


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "One request at a time: time to first token, time between tokens, share of the memory bandwidth."
    command.description = text
    add_model(command)
    command.add_argument("--peer", choices=["hf"], help="in turn with Hugging Face's generate (default: without)")
    command.add_argument("--input-len", type=int, metavar="N", default=128, help="prompt tokens of a request")
    command.add_argument("--output-len", type=int, metavar="N", default=32, help="new tokens of a request")
    add_rounds(command)
    add_seed(command)
    add_output(command)


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    peer: str | None = None,
    device: str | None = None,
    input_len: int = 128,
    output_len: int = 32,
    rounds: int = 3,
    seed: int = 0,
) -> Report:
    """Rounds of ours and the peer's, the machine measured before each of them."""
    require_at_least(1, input_len=input_len, rounds=rounds)
    require_at_least(2, output_len=output_len)
    peers = [peer] if peer else []
    require_peers(peers)
    setup = PeerSetup(model, dtype, device, input_len + output_len, num_requests=1, batch_size=1)
    prompts = random_prompts(rounds + 1, input_len, vocab_size(model), seed)
    found = race(setup, peers, rounds, lambda number: ([prompts[number]], [output_len if number else 2]))
    samples = {one.name: Samples.of(runs) for one, runs in zip(found.contestants, found.runs, strict=True)}
    common = {"dtype": dtype, "prompt_tokens": input_len, "output_tokens": output_len}
    rows = [
        common | _row(name, samples, found.bandwidth, found.weight_bytes, from_memory=found.from_memory)
        for name in samples
    ]
    ordered = [{column: row[column] for column in COLUMNS} for row in rows]
    notes = [
        f"{medians(rounds, 'round')} after a warm-up, in turn.",
        "tpot: mean over a run's tokens after the first.",
        "roofline: (weights / bandwidth) / tpot, the bandwidth measured between the runs.",
    ]
    if not found.from_memory:
        notes.append("The weights are small enough to stay in caches: no roofline.")
    notes += found.missing
    kept = [
        {"ttft_ms": [each * 1e3 for each in mine.ttft], "tpot_ms": [each * 1e3 for each in mine.tpot]}
        for mine in samples.values()
    ]
    return Report("latency", f"Latency, {model.label}", command, COLUMNS, ordered, notes, samples=kept)


def _row(name: str, samples: dict[str, Samples], bandwidth: float, weight_bytes: int, *, from_memory: bool) -> Row:
    mine, ours, peer = samples[name], samples["folovllm"], samples.get("hf")
    tpot, ttft = statistics.median(mine.tpot), statistics.median(mine.ttft)
    against_peer = peer is not None and mine is ours
    return {
        "engine": name,
        "batch": 1,
        "ttft_ms": ttft * 1e3,
        "tpot_ms": tpot * 1e3,
        **{f"itl_p{p}_ms": percentile(mine.gaps, p) * 1e3 for p in (50, 95, 99)},
        "decode_tokens_per_s": 1 / tpot,
        "prefill_speedup": statistics.median(peer.ttft) / ttft if peer and against_peer else None,
        "decode_speedup": statistics.median(peer.tpot) / tpot if peer and against_peer else None,
        "weights_gb": weight_bytes / 1e9,
        "bandwidth_gb_per_s": bandwidth / 1e9,
        "roofline": weight_bytes / bandwidth / tpot if from_memory else None,
    }
