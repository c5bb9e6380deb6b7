"""One milestone's engine beside Hugging Face's generate: one request at a time, as in `folovllm bench latency`.

    round 1   m1 ████   hf ██████      the milestone's tree in a process of its own (milestones/bench/worker.py)
    round 2   m1 ████   hf ██████

With a checkpoint in float32 both must give the same tokens. Random weights are each engine's own: nothing is compared.

vLLM: none
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from folovllm.bench.options import add_model, add_output, add_rounds, add_seed, call
from folovllm.bench.peers.apart import Apart, PeerSetup
from folovllm.bench.peers.registry import HF, start_transformers
from folovllm.bench.probe import Probe, exceeds_caches
from folovllm.bench.race import SETTLE
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.roofline import ModelCost
from folovllm.bench.workload import BenchModel, progress_bar, random_prompts, require_at_least, vocab_size
from folovllm.config import ModelConfig
from folovllm.hf_config import load_hf_config
from milestones.bench.process import Worker
from milestones.bench.requests import start_workers
from milestones.bench.workloads import engine_common
from milestones.chain import Course
from milestones.site.source import ROOT
from milestones.sources import working_tree

COLUMNS = [
    "engine", "dtype", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "decode_tokens_per_s",
    "prefill_speedup", "decode_speedup", "weights_gb", "bandwidth_gb_per_s", "roofline",
]  # fmt: skip
Times = tuple[float, float]
"""Of one run: seconds to the first token, and per token after it."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "One milestone's engine beside Hugging Face's generate, one request at a time."
    command.add_argument("milestone", metavar="mK", help="whose tree is measured")
    add_model(command)
    command.add_argument("--input-len", type=int, metavar="N", default=128, help="prompt tokens of a request")
    command.add_argument("--output-len", type=int, metavar="N", default=32, help="new tokens of a request")
    add_rounds(command)
    add_seed(command)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    return call(run, args)


def run(
    model: BenchModel, *, milestone: str, command: str, dtype: str, input_len: int = 128, output_len: int = 32,
    rounds: int = 3, seed: int = 0,
) -> Report:  # fmt: skip
    require_at_least(1, input_len=input_len, rounds=rounds)
    require_at_least(2, output_len=output_len)
    length = input_len + output_len
    prompts = random_prompts(rounds + 1, input_len, vocab_size(model), seed)
    setup = PeerSetup(model, dtype, "cpu", length, num_requests=1, batch_size=1)
    probe = Probe(torch.device("cpu"), getattr(torch, dtype))
    times: dict[str, list[Times]] = {milestone: [], "hf": []}
    options = engine_common(model, length, dtype)
    with ExitStack() as stack:
        tick = stack.enter_context(progress_bar(2 + 2 * (rounds + 1)))
        stack.enter_context(setup.cleanup)
        course, threads = Course.load(working_tree(ROOT)), torch.get_num_threads()
        (worker,) = stack.enter_context(start_workers(course, {milestone: (milestone, options)}, threads, tick))
        tick("loading hf")
        peer = start_transformers(HF, setup)
        plays = {milestone: partial(_ours, worker), "hf": partial(_theirs, peer)}
        for number, prompt in enumerate(prompts):
            tokens = {}
            for name, play in plays.items():
                tick(f"round {number}/{rounds}: {name}" if number else f"warm-up: {name}")
                time.sleep(SETTLE)
                probe.measure(warm_up=number == 0)
                tokens[name], found = play(prompt, output_len)
                if number:
                    times[name].append(found)
            if dtype == "float32" and model.load_format == "auto" and tokens[milestone] != tokens["hf"]:
                raise ValueError(f"{milestone} and Hugging Face give different tokens for prompt {number}")
    return _report(model, milestone, command, dtype, times, probe, (input_len, output_len))


def _ours(worker: Worker, prompt: list[int], count: int) -> tuple[list[int], Times]:
    wave = {"after": 0, "prompts": [prompt], "max_tokens": [count]}
    answer = worker.ask({"waves": [wave], "enough": None})
    (came,) = answer["times"]
    return answer["tokens"][0], (came[0] - answer["arrivals"][0], (came[-1] - came[0]) / (count - 1))


def _theirs(peer: Apart, prompt: list[int], count: int) -> tuple[list[int], Times]:
    (tokens,), run = peer.generate([prompt], [count], batch_size=1)
    return tokens, (run.prefill_seconds, run.decode_seconds / (count - 1))


def _report(
    model: BenchModel, milestone: str, command: str, dtype: str, times: dict[str, list[Times]], probe: Probe,
    lengths: tuple[int, int],
) -> Report:  # fmt: skip
    config = load_hf_config(ModelConfig(model.path, load_format=model.load_format, skip_tokenizer_init=True))
    weights = ModelCost.of(config, getattr(torch, dtype)).weight_bytes
    from_memory = exceeds_caches(weights, probe.device)
    found = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in times.items()}
    rows: list[Row] = []
    for name, (ttft, tpot) in found.items():
        ours = name == milestone
        values = (
            name, dtype, *lengths, ttft * 1e3, tpot * 1e3, 1 / tpot,
            found["hf"][0] / ttft if ours else None, found["hf"][1] / tpot if ours else None,
            weights / 1e9, probe.bandwidth / 1e9, weights / probe.bandwidth / tpot if from_memory else None,
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    notes = [
        f"{medians(len(times['hf']), 'round')} after a warm-up, in turn, each in a process of its own.",
        "tpot: mean over a run's tokens after the first. speedup: Hugging Face's time over the milestone's.",
    ]
    notes += ["roofline: (weights / bandwidth) / tpot, the bandwidth measured between the runs."] if from_memory else []
    samples: list[dict[str, Any]] = [
        {"ttft_ms": [ttft * 1e3 for ttft, _ in mine], "tpot_ms": [tpot * 1e3 for _, tpot in mine]}
        for mine in times.values()
    ]
    title = f"{milestone} beside Hugging Face, {model.label}"
    return Report("milestone", title, command, COLUMNS, rows, notes, samples=samples)
