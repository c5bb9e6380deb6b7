"""A preset's requests, all at once: ours and peers in turn, beside the least that the run could cost on this machine.

What it costs at least is known before it runs; see run_cost.py. The workloads are in presets.py.

vLLM: benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from folovllm.bench.contestant import Contestant, Run
from folovllm.bench.lengths import Lengths
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed, command_line, source
from folovllm.bench.peers.apart import PeerSetup
from folovllm.bench.peers.registry import make_peers, peer_names, require_peers
from folovllm.bench.probe import Probe, exceeds_caches
from folovllm.bench.race import take_turns
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.roofline import ModelCost
from folovllm.bench.workload import BenchModel, dtype_of, progress_bar, require_at_least, vocab_size
from folovllm.utils.devices import default_device
from workshop.bench import cache_use
from workshop.bench.ablations import leave_out_draw, left_out, require_ablations
from workshop.bench.cache_use import CountingFoloVLLM
from workshop.bench.presets import PRESETS, Preset, preset_of
from workshop.bench.run_cost import RunCost

COLUMNS = [
    "engine", "dtype", "requests", "prompt_tokens", "output_tokens", "seconds", "output_tokens_per_s",
    "total_tokens_per_s", "speedup", "steps", "running_seqs", *cache_use.COLUMNS, "kv_read_gb",
    "weights_read_gb", "prefill_tflop", "floor_s", "share",
]  # fmt: skip
WARM_UP = 8  # requests, with as many tokens of output each


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "A workload by its name, all requests at once, beside the least that it could cost here."
    command.add_argument("preset", nargs="?", choices=list(PRESETS), default="nano-vllm", help="the workload")
    add_model(command)
    text = "take turns with hf or another (a wrong name is answered with all); several: A,B"
    command.add_argument("--peer", action="append", default=[], dest="peers", metavar="PEER", help=text)
    command.add_argument("--peer-python", metavar="PATH", help="for the peer vllm: the Python that has vLLM")
    command.add_argument(
        "--num-requests", "--num-prompts", type=int, metavar="N", help="instead of the preset's number"
    )
    command.add_argument("--input-len", type=int, metavar="N", help="tokens of the longest prompt, instead of its own")
    command.add_argument("--output-len", type=int, metavar="N", help="of the longest answer, instead of its own")
    text = "leave out one of the things that make our engine fast, or several (a wrong name is answered with all)"
    command.add_argument("--without", nargs="+", default=[], metavar="WHAT", help=text)
    text = "the share of a GPU's memory for our engine (default: 0.9); less leaves room for a peer"
    command.add_argument("--gpu-memory-utilization", type=float, metavar="X", help=text)
    add_rounds(command)
    add_seed(command)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    share = args.gpu_memory_utilization
    with source(args) as model:
        return run(
            model,
            preset_of(args.preset, args),
            command=command_line(args),
            dtype=dtype_of(model, args.dtype, args.device),
            device=args.device,
            peers=peer_names(args.peers),
            peer_python=args.peer_python,
            rounds=args.rounds,
            without=args.without,
            options={} if share is None else {"gpu_memory_utilization": share},
        )


def run(
    model: BenchModel,
    preset: Preset,
    *,
    command: str,
    dtype: str,
    device: str | None = None,
    peers: Sequence[str] = (),
    peer_python: str | None = None,
    rounds: int = 3,
    without: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Report:
    """Rounds of ours and of each peer in turn. The first round's token ids are the drawn ones.

    without: what our engine is to lack; see ablations.py. options: more of its settings, by their names.
    """
    require_at_least(1, num_requests=preset.num_requests, input_len=preset.longest_prompt, rounds=rounds)
    require_at_least(2, output_len=preset.longest_output)
    require_peers(peers)
    require_ablations(without)
    drawn, outputs = preset.draw()
    lengths = Lengths([len(prompt) for prompt in drawn], outputs)
    max_model_len = check_room(model, preset, lengths.longest)
    setup = PeerSetup(model, dtype, device, lengths.longest, preset.num_requests, 1, peer_python)
    vocab = vocab_size(model)

    def work(number: int) -> tuple[list[list[int]], list[int]]:
        """Other ids in each round, so that no cache of prefixes remembers them from the one before."""
        if number:
            return shifted(drawn, number - 1, vocab), outputs
        return shifted(drawn[:WARM_UP], rounds, vocab), [min(WARM_UP, length) for length in outputs[:WARM_UP]]

    with setup.cleanup, progress_bar(2 + len(peers) + (rounds + 1) * (1 + len(peers))) as tick:
        tick("loading folovllm")
        settings = {**(options or {}), **left_out(without, torch.device(device or default_device()))}
        ours = CountingFoloVLLM(model, dtype, device, max_model_len, **settings)
        if "sampling" in without:
            leave_out_draw(ours.engine)
        ours.sampling = preset.sampling
        contestants: list[Contestant] = [ours]
        others, missing = make_peers(peers, setup, tick)
        contestants += others
        probe = Probe(ours.engine.device, ours.engine.dtype)
        tick("measuring the machine")
        runs = take_turns(contestants, rounds, work, tick, lambda warm_up: probe.measure(warm_up=warm_up))
    token_cost = ModelCost.of_engine(ours.engine)
    cost = RunCost.of(token_cost, lengths.prompts, outputs)
    floor = cost.floor_seconds(probe.bandwidth, probe.flops_per_s)
    from_memory = exceeds_caches(token_cost.weight_bytes, probe.device) and not preset.shares_prefixes
    common = {"dtype": dtype, "requests": len(outputs)}
    common |= {"prompt_tokens": sum(lengths.prompts), "output_tokens": sum(outputs)}
    facts = {
        "kv_read_gb": cost.kv_bytes / 1e9,
        "weights_read_gb": cost.weight_bytes / 1e9,
        "prefill_tflop": cost.prefill_flops / 1e12,
        "floor_s": floor,
        "from_memory": from_memory,
    }
    base = statistics.median(map(_seconds, runs[0]))
    rows = [
        _row(contestant.name, common, facts, results, base if contestant is not ours else None)
        for contestant, results in zip(contestants, runs, strict=True)
    ]
    rows[0] |= cache_use.cells(ours.uses[1:])  # the first warmed up
    notes = [
        f"All requests at once, drawn from seed {preset.seed}; {medians(rounds, 'round').lower()} after a warm-up, in "
        f"turn. {_sampling(preset)}; no request ends before its length; max_model_len {max_model_len}.",
        "floor: the K and V of every decode step and the weights of every step at the measured bandwidth, then the "
        "prompts' operations at the measured matmul rate; share: floor over seconds.",
        cache_use.NOTE,
        probe.describe(),
    ]
    notes += missing
    if others:
        notes.append("Peers pick the likeliest token instead of drawing one. speedup: their seconds over ours.")
    if without:
        notes.append(f"Our engine without: {', '.join(without)}.")
    if preset.shares_prefixes:
        notes.append("No share: a cache of prefixes saves some of the prompts' operations, which the floor counts.")
    elif not from_memory:
        notes.append("The weights are small enough to stay in caches: no share.")
    details = {
        "kv_token_reads": cost.kv_token_reads,
        "kv_token_bytes": cost.kv_bytes // max(cost.kv_token_reads, 1),
        "floor_steps": cost.steps,
        "prefill_flops": cost.prefill_flops,
        "bandwidth_bytes_per_s": probe.bandwidth,
        "matmul_flops_per_s": probe.flops_per_s,
        "seconds_of_rounds": [_seconds(run) for run in runs[0]],
        "without": list(without),
        "prompt_lengths": lengths.prompts,
        "output_lengths": outputs,
    }
    samples = [{"seconds": list(map(_seconds, results))} for results in runs]
    title = f"Throughput, {model.label}"
    return Report("preset", title, command, COLUMNS, rows, notes, details=details, samples=samples)


def _sampling(preset: Preset) -> str:
    text = f"Temperature {preset.temperature:g}"
    text += f", top_k {preset.top_k}" if preset.top_k > 0 else ""
    return text + (f", top_p {preset.top_p:g}" if preset.top_p < 1.0 else "")


def check_room(model: BenchModel, preset: Preset, longest: int) -> int:
    """The preset's max_model_len, or less for a model that was made for less."""
    from folovllm.config import ModelConfig
    from folovllm.hf_config import load_hf_config
    from folovllm.model_loader import resolve_max_model_len

    config = load_hf_config(ModelConfig(model.path, load_format=model.load_format, skip_tokenizer_init=True))
    room = min(preset.max_model_len, resolve_max_model_len(config, None))
    if longest > room:
        raise ValueError(
            f"input_len and output_len must leave the longest request at most {room} tokens, got {longest}: lower them"
        )
    return room


def shifted(prompts: list[list[int]], by: int, vocab_size: int) -> list[list[int]]:
    return [[(token + by) % vocab_size for token in prompt] for prompt in prompts]


def _seconds(run: Run) -> float:
    """Handing the requests over counts too, where that is known: published figures of other engines include it."""
    return run.seconds if run.wall_seconds is None else run.wall_seconds


def _row(name: str, common: Row, facts: Row, runs: list[Run], base: float | None) -> Row:
    """`base`: our seconds, for a peer's row; None for our own."""
    seconds = statistics.median(map(_seconds, runs))
    row = {"engine": name, **common, **facts, "seconds": seconds, "speedup": seconds / base if base else None}
    row |= {
        "output_tokens_per_s": common["output_tokens"] / seconds,
        "total_tokens_per_s": (common["prompt_tokens"] + common["output_tokens"]) / seconds,
        # A peer's steps are as it groups them, which is not ours to compare.
        "steps": None if base else max(map(len, runs)),
        "running_seqs": None if base else max(step.tokens for run in runs for step in run),
        "share": facts["floor_s"] / seconds if facts["from_memory"] else None,
    }
    return {column: row.get(column) for column in COLUMNS}
