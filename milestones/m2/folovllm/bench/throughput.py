"""Several requests: tokens per second in prefill, in decode and over all, and what the KV cache holds of what it
reserves.

Peers take turns with the engine, round by round. One that takes a fixed number of prompts at a time runs them one
after the other and, where asked, in batches: which is the fair comparison depends on what it is used for.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from folovllm.bench.peers import PEERS, Contestant, FoloVLLM, MixedContestant, PeerSetup, Run, require_peers
from folovllm.bench.report import Report, Row
from folovllm.bench.workload import BenchModel, progress_bar, require_at_least

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
    "kv_reserved_tokens",
    "kv_used_tokens",
]
SHORTEST = 8  # mixed lengths begin at the N-th part of the longest


@dataclass(frozen=True)
class Lengths:
    """Tokens of each request, the same in every round and for every contestant."""

    prompts: list[int]
    outputs: list[int]
    note: str

    @classmethod
    def make(cls, count: int, input_len: int, output_len: int, *, mixed: bool) -> Lengths:
        """Every request of these lengths, or uniform from an eighth of them up to them."""
        if not mixed:
            return cls([input_len] * count, [output_len] * count, "")
        rng = random.Random(0)
        shortest_input, shortest_output = max(1, input_len // SHORTEST), max(2, output_len // SHORTEST)
        prompts = [rng.randint(shortest_input, input_len) for _ in range(count)]
        outputs = [rng.randint(shortest_output, output_len) for _ in range(count)]
        note = (
            f"Mixed lengths, uniform, seed 0: prompts of {shortest_input} to {input_len} tokens, outputs of "
            f"{shortest_output} to {output_len}; the columns show the means."
        )
        return cls(prompts, outputs, note)

    def make_prompts(self, vocab_size: int, seed: int, count: int) -> list[list[int]]:
        rng = random.Random(seed)
        return [[rng.randrange(vocab_size) for _ in range(length)] for length in self.prompts[:count]]


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    peers: Sequence[str] = (),
    device: str | None = None,
    num_requests: int = 4,
    input_len: int = 32,
    output_len: int = 32,
    mixed: bool = False,
    peer_batch_size: int = 1,
    rounds: int = 3,
) -> Report:
    require_at_least(1, num_requests=num_requests, input_len=input_len, rounds=rounds, peer_batch_size=peer_batch_size)
    require_at_least(2, output_len=output_len)
    require_peers(peers)
    lengths = Lengths.make(num_requests, input_len, output_len, mixed=mixed)
    setup = PeerSetup(model, dtype, device, input_len + output_len, num_requests, peer_batch_size)
    with setup.cleanup:
        with progress_bar(1 + len(peers)) as tick:
            tick("loading folovllm")
            ours = FoloVLLM(model, dtype, device, setup.max_model_len)
            contestants: list[Contestant] = [ours]
            for peer in peers:
                tick(f"loading {peer}")
                contestants += PEERS[peer](setup)
        require_mixed(contestants, mixed=mixed)
        runs = _measure(contestants, lengths, ours.engine.runner.vocab_size, mixed=mixed, rounds=rounds)
    base = statistics.median(result.seconds for result in runs[0])
    rows: list[Row] = [
        {"engine": contestant.name, "dtype": dtype, "requests": num_requests}
        | {"batch": getattr(contestant, "batch_size", None)}
        | _row(results, lengths)
        for contestant, results in zip(contestants, runs, strict=True)
    ]
    for row in rows[1:]:
        row["speedup"] = row["seconds"] / base
    notes = [
        f"Medians of {rounds} rounds after a warm-up, one process, in turn.",
        "speedup: this row's seconds over folovllm's.",
        "batch: prompts that the peer takes at a time; folovllm schedules by itself.",
        "kv: tokens in folovllm's cache when most of them were used, and what was reserved for these sequences.",
    ]
    notes += [lengths.note] if mixed else []
    return Report("throughput", f"Throughput, {model.label}", command, COLUMNS, rows, notes)


def require_mixed(contestants: Sequence[Contestant], *, mixed: bool) -> None:
    """Raises ValueError for a contestant that cannot take requests of different lengths, when there are such."""
    for contestant in contestants:
        if mixed and not isinstance(contestant, MixedContestant):
            raise ValueError(f"mixed must be off with the peer {contestant.name!r}: its requests end all together")


def _measure(
    contestants: list[Contestant], lengths: Lengths, vocab_size: int, *, mixed: bool, rounds: int
) -> list[list[Run]]:
    """Each contestant's runs."""
    runs: list[list[Run]] = [[] for _ in contestants]
    with progress_bar((rounds + 1) * len(contestants)) as tick:
        for number in range(rounds + 1):
            # A fresh set in each round, so that nothing can be remembered; one request is enough to warm up.
            count = len(lengths.prompts) if number else 1
            prompts = lengths.make_prompts(vocab_size, number, count)
            for contestant, results in zip(contestants, runs, strict=True):
                size = getattr(contestant, "batch_size", None)
                label = contestant.name + (f" batch {size}" if size else "")
                tick(f"round {number}/{rounds}: {label}" if number else f"warm-up: {label}")
                gc.collect()
                if mixed and isinstance(contestant, MixedContestant):
                    result = contestant.run_mixed(prompts, lengths.outputs[:count])
                else:
                    result = contestant.run(prompts, lengths.outputs[0])
                if number:
                    results.append(result)
    return runs


def _row(results: list[Run], lengths: Lengths) -> Row:
    seconds = statistics.median(result.seconds for result in results)
    reserved = [result.kv_reserved_tokens for result in results if result.kv_reserved_tokens is not None]
    used = [result.kv_used_tokens for result in results if result.kv_used_tokens is not None]
    return {
        "prompt_tokens": _mean(lengths.prompts),
        "output_tokens": _mean(lengths.outputs),
        "seconds": seconds,
        "prefill_tokens_per_s": statistics.median(sum(lengths.prompts) / r.prefill_seconds for r in results),
        "decode_tokens_per_s": statistics.median(r.decode_tokens / r.decode_seconds for r in results),
        "output_tokens_per_s": sum(lengths.outputs) / seconds,
        "speedup": None,
        "kv_reserved_tokens": round(statistics.median(reserved)) if reserved else None,
        "kv_used_tokens": round(statistics.median(used)) if used else None,
    }


def _mean(values: list[int]) -> int | float:
    """A whole number where all are the same."""
    return values[0] if len(set(values)) == 1 else statistics.mean(values)
