"""A preset's requests, all at once: ours and peers in turn, beside the least that the run could cost on this machine.

What it costs at least is known before it runs: the K and V of all decode steps and the weights of each step at the
measured bandwidth, and the prompts' operations at the measured rate of products. The workloads are in presets.py.

vLLM: benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from folovllm.bench.options import add_common, add_model, add_number, source
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.runs import FoloVLLM, Work
from folovllm.bench.workload import BenchModel, hf_config_of, vocab_size
from folovllm.model_loader import resolve_max_model_len
from workshop.bench.ablate import left_out
from workshop.bench.contestant import PeerSetup, add_peers, check_peers
from workshop.bench.presets import PRESETS, Preset, preset_of
from workshop.bench.roofline import ModelCost
from workshop.bench.rounds import Rounds, keep, run_rounds

COLUMNS = [
    "engine", "dtype", "requests", "prompt_tokens", "output_tokens", "seconds", "output_tokens_per_s",
    "total_tokens_per_s", "speedup", "steps", "running_seqs", "kv_peak_share", "prefix_hit_rate", "preemptions",
    "kv_read_gb", "weights_read_gb", "prefill_tflop", "floor_s", "share",
]  # fmt: skip
WARM_UP = 8  # requests, with as many tokens of output each


@dataclass(frozen=True)
class RunCost:
    """What requests cost that all begin together and decode together, each to the end of its output."""

    kv_token_reads: int
    """Over all decode steps, the tokens in the context of all sequences, the step's own token included."""
    kv_bytes: int
    steps: int
    weight_bytes: int
    prefill_flops: int

    @classmethod
    def of(cls, cost: ModelCost, prompts: Sequence[int], outputs: Sequence[int]) -> RunCost:
        """The first token of a request comes from its prefill, so output n takes n - 1 decode steps, over contexts of
        prompt + 1, prompt + 2, …; the prompts' own weight reads are those of one step."""
        pairs = list(zip(prompts, outputs, strict=True))
        reads = sum(prompt * (output - 1) + output * (output - 1) // 2 for prompt, output in pairs)
        causal = sum(prompt * (prompt + 1) // 2 for prompt in prompts)
        flops = sum(prompts) * cost.body_flops + len(prompts) * cost.head_flops + causal * cost.pair_flops
        steps = max(outputs)
        return cls(reads, reads * cost.kv_token_bytes, steps, steps * cost.weights_read(len(prompts)), flops)

    def floor_seconds(self, bandwidth: float, flops_per_s: float) -> float:
        """Prefill is bound by operations and decode by bytes, and one comes after the other."""
        return (self.kv_bytes + self.weight_bytes) / bandwidth + self.prefill_flops / flops_per_s


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "A workload by its name, all requests at once, beside the least that it could cost here."
    command.add_argument("preset", nargs="?", choices=list(PRESETS), default="nano-vllm", help="the workload")
    add_model(command)
    add_peers(command)
    add_number(command, "--num-requests", "--num-prompts", help="instead of the preset's number")
    add_number(command, "--input-len", help="tokens of the longest prompt, instead of the preset's")
    add_number(command, "--output-len", help="of the longest answer, instead of the preset's", least=2)
    text = "leave out one of the things that make our engine fast, or several (a wrong name is answered with all)"
    command.add_argument("--without", nargs="+", default=[], metavar="WHAT", help=text)
    text = "what our engine's KV cache is kept in (default: auto, the model's dtype)"
    command.add_argument("--kv-cache-dtype", choices=["auto", "fp8", "int8"], default="auto", help=text)
    text = "the share of a GPU's memory for our engine (default: 0.9); less leaves room for a peer"
    command.add_argument("--gpu-memory-utilization", type=float, metavar="X", help=text)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    """Rounds of ours and of each peer in turn. The first round's token ids are the drawn ones."""
    preset, peers = preset_of(args.preset, args), check_peers(args.peers)
    drawn, outputs = preset.draw()
    prompts = [len(prompt) for prompt in drawn]
    longest = max(prompt + output for prompt, output in zip(prompts, outputs, strict=True))
    options, changes = left_out(args.without)
    options["kv_cache_dtype"] = args.kv_cache_dtype
    if args.gpu_memory_utilization is not None:
        options["gpu_memory_utilization"] = args.gpu_memory_utilization

    def prepare(ours: FoloVLLM) -> None:
        ours.sampling = preset.sampling
        for change in changes:
            change(ours)

    with source(args) as model:
        options["max_model_len"] = room = check_room(model, preset, longest)
        vocab = vocab_size(model)

        def work(number: int) -> Work:
            """Other ids in each round, so that no cache of prefixes remembers them from the one before."""
            if number:
                return shifted(drawn, number - 1, vocab), outputs
            few = [min(WARM_UP, length) for length in outputs[:WARM_UP]]
            return shifted(drawn[:WARM_UP], args.rounds, vocab), few

        def report(found: Rounds) -> Report:
            return _report(args, f"Throughput, {model.label}", preset, found, prompts, outputs, room)

        setup = PeerSetup(model, args.dtype, args.device, longest, preset.num_requests, vars(args))
        found = run_rounds(
            setup, peers, args.rounds, work, prepare=prepare, after_round=lambda found: keep(args, report(found)),
            **options,
        )  # fmt: skip
    return report(found)


def _report(
    args: argparse.Namespace, title: str, preset: Preset, found: Rounds, prompts: list[int], outputs: list[int],
    room: int,
) -> Report:  # fmt: skip
    """prompts: their lengths."""
    cost, probe = RunCost.of(found.cost, prompts, outputs), found.probe
    floor = cost.floor_seconds(probe.bandwidth, probe.flops_per_s)
    lines = found.lines(
        args, lambda runs: {"seconds": [run.wall_seconds or run.seconds for run in runs]},
        requests=preset.num_requests, prompt_tokens=sum(prompts), output_tokens=sum(outputs), floor_s=floor,
        kv_read_gb=cost.kv_bytes / 1e9, weights_read_gb=cost.weight_bytes / 1e9,
        prefill_tflop=cost.prefill_flops / 1e12,
    )  # fmt: skip
    base = statistics.median(lines[0][1]["seconds"])
    for row, samples in lines:
        middle = statistics.median(samples["seconds"])
        row["dtype"] = args.dtype if args.kv_cache_dtype == "auto" else f"{args.dtype}, cache in {args.kv_cache_dtype}"
        row["output_tokens_per_s"] = sum(outputs) / middle
        row["total_tokens_per_s"] = (sum(prompts) + sum(outputs)) / middle
        row["share"] = floor / middle if found.from_memory and not preset.shares_prefixes else None
        row["speedup"] = None if row is lines[0][0] else middle / base
    lines[0][0].update(_ours(found))
    return Report.of(args, title, COLUMNS, lines, _notes(args, preset, found, room))


def _ours(found: Rounds) -> Row:
    """What is known of our engine alone. A peer's steps are as it groups them, which is not ours to compare."""
    runs = found.runs[0]
    engine = found.contestants[0].engine  # type: ignore[attr-defined]
    queries = sum(run.prefix_queries for run in runs)
    slots = engine.stats().kv_blocks_total * engine.scheduler.kv.block_size
    return {
        "steps": max(map(len, runs)),
        "running_seqs": max(step.tokens for run in runs for step in run),
        "kv_peak_share": max(run.kv_reserved_tokens or 0 for run in runs) / slots,
        "prefix_hit_rate": sum(run.prefix_hits for run in runs) / queries if queries else None,
        "preemptions": sum(run.preemptions for run in runs),
    }


def _notes(args: argparse.Namespace, preset: Preset, found: Rounds, room: int) -> list[str]:
    sampling = f"Temperature {preset.temperature:g}" + (f", top_k {preset.top_k}" if preset.top_k > 0 else "")
    sampling += f", top_p {preset.top_p:g}" if preset.top_p < 1.0 else ""
    notes = [
        f"All requests at once, drawn from seed {preset.seed}; {medians(len(found.runs[0]), 'round').lower()} after a "
        f"warm-up, in turn. {sampling}; no request ends before its length; max_model_len {room}.",
        "floor: the K and V of every decode step and the weights of every step at the measured bandwidth, then the "
        "prompts' operations at the measured matmul rate; share: floor over seconds.",
        "kv peak share: the blocks of running sequences, at most, over all; prefix hit rate: of the prompts' tokens, "
        "those found in the cache; preemptions: of sequences, in all rounds.",
        found.probe.describe(),
        *found.missing,
    ]
    if len(found.contestants) > 1:
        notes.append("Peers pick the likeliest token instead of drawing one. speedup: their seconds over ours.")
    if args.without:
        notes.append(f"Our engine without: {', '.join(args.without)}.")
    if preset.shares_prefixes:
        notes.append("No share: a cache of prefixes saves some of the prompts' operations, which the floor counts.")
    elif not found.from_memory:
        notes.append("The weights are small enough to stay in caches: no share.")
    return notes


def check_room(model: BenchModel, preset: Preset, longest: int) -> int:
    """The preset's max_model_len, or less for a model that was made for less."""
    room = min(preset.max_model_len, resolve_max_model_len(hf_config_of(model), None))
    if longest > room:
        raise ValueError(
            f"input_len and output_len must leave the longest request at most {room} tokens, got {longest}: lower them"
        )
    return room


def shifted(prompts: list[list[int]], by: int, vocab_size: int) -> list[list[int]]:
    return [[(token + by) % vocab_size for token in prompt] for prompt in prompts]
