"""The sampler against the formulation that is usually written first: everything over the whole vocabulary.

The naive one sorts, takes softmax and running sum, masks, scatters back to the vocabulary's order, takes softmax again
and calls torch.multinomial; what a setting does not need, it leaves out too. Both get the same float32 logits.

The Triton kernel that draws on a GPU is measured by the GPU kit.

vLLM: none
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from folovllm.bench.options import add_batch_sizes, add_common, add_number
from folovllm.bench.report import Line, Report, Row
from folovllm.bench.workload import progress_bar
from folovllm.sample.groups import group_rows, sample_groups
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow
from folovllm.sample.sampler import DrawingRows, Sampler, SamplerOutput
from folovllm.sampling_params import SamplingParams
from folovllm.utils.devices import default_device
from workshop.bench.timer import Timer

COLUMNS = ["setting", "logits", "vocab", "batch", "naive_ms", "sampler_ms", "speedup"]
SECONDS_PER_CASE = 1.0
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128  # what penalties have to look at
# A setting, its parameters, and the kind of logits it meets.
CASES = [
    ("greedy", SamplingParams(temperature=0), "normal"),
    ("temperature=0.8", SamplingParams(temperature=0.8), "normal"),
    ("top_k=40, top_p=0.9", SamplingParams(top_k=40, top_p=0.9), "normal"),
    ("top_p=0.9", SamplingParams(top_p=0.9), "peaked"),
    ("top_p=0.9", SamplingParams(top_p=0.9), "normal"),
    ("min_p=0.05", SamplingParams(min_p=0.05), "normal"),
    (
        "three penalties",
        SamplingParams(repetition_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.2),
        "normal",
    ),
]


class NaiveSampler(Sampler):
    """Every row over the whole vocabulary, all under the same settings, without penalties: an engine's, to compare."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__()
        self.params = params

    def sample(
        self, raw: Tensor, edited: Tensor, metadata: SamplingMetadata, drawing: DrawingRows | None = None
    ) -> SamplerOutput:
        return SamplerOutput(naive_sample(edited.float(), self.params, []))


def make_logits(kind: str, batch: int, vocab_size: int, seed: int = 0) -> Tensor:
    """`normal`: independent with deviation 3, the hard case: top_p=0.9 keeps thousands. `peaked`: falling with the
    logarithm of the rank, as a language model's do, in random order: top_p=0.9 keeps dozens."""
    noise = torch.randn(batch, vocab_size, generator=torch.Generator().manual_seed(seed))
    if kind == "normal":
        return noise * 3
    ranks = noise.argsort(dim=-1).argsort(dim=-1) + 1
    return -1.5 * ranks.float().log()


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Sampling from random logits: this engine's sampler against a full sort and scatter."
    add_batch_sizes(command, 1, 8, 64, help="rows of logits")
    add_number(command, "--vocab-sizes", default=[50257, 151936], help="columns", nargs="+")
    add_common(command, rounds=5)


@torch.inference_mode()
def run(args: argparse.Namespace) -> Report:
    """Ours and the naive one in turn, for a second or so."""
    device = torch.device(default_device())
    lines: list[Line] = []
    with progress_bar(len(args.batch_sizes) * len(args.vocab_sizes) * len(CASES)) as tick:
        for label, params, kind in CASES:
            for vocab_size in args.vocab_sizes:
                for batch in args.batch_sizes:
                    tick(f"{label}, vocabulary {vocab_size:,}, batch {batch}")
                    logits = make_logits(kind, batch, vocab_size, args.seed).to(device)
                    times = _measure(params, logits, args.rounds)
                    facts: Row = {"setting": label, "logits": kind, "vocab": vocab_size, "batch": batch}
                    naive, ours = (statistics.median(times[f"{name}_ms"]) for name in ("naive", "sampler"))
                    lines.append((facts | {"speedup": naive / ours}, times))
    notes = [
        "Medians, the two in turn in one process; a speedup above 1 means that the sampler is faster.",
        "naive: sort, softmax, cumsum, mask, scatter, softmax, multinomial, as far as the setting needs them.",
    ]
    return Report.of(args, "Sampling, one step", COLUMNS, lines, notes)


def _measure(params: SamplingParams, logits: Tensor, rounds: int) -> dict[str, list[float]]:
    """Milliseconds: of each round the median of as many calls as fit into its part of a second."""
    rows = _rows(params, *logits.shape)
    groups = group_rows(rows, logits.shape[1], logits.device)  # once per membership, not per step
    sampler = Sampler()
    timers = {
        "naive": Timer(lambda: naive_sample(logits, params, rows), logits.device),
        "sampler": Timer(lambda: sample_groups(sampler, logits, groups), logits.device),
    }
    times: dict[str, list[float]] = {f"{name}_ms": [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            end, taken = time.perf_counter() + SECONDS_PER_CASE / rounds / len(timers), [timer.seconds()]
            while time.perf_counter() < end:
                taken.append(timer.seconds())
            times[f"{name}_ms"].append(statistics.median(taken) * 1e3)
    return times


def _rows(params: SamplingParams, batch: int, vocab_size: int) -> list[SamplingRow]:
    generator = torch.Generator().manual_seed(1)
    tokens: list[Any] = torch.randint(vocab_size, (batch, PROMPT_TOKENS + OUTPUT_TOKENS), generator=generator).tolist()
    return [
        SamplingRow(params, row[:PROMPT_TOKENS], row[PROMPT_TOKENS:], frozenset(), generator=None) for row in tokens
    ]


def naive_sample(logits: Tensor, params: SamplingParams, rows: Sequence[SamplingRow]) -> Tensor:
    """One token per row [b], all rows under the same settings."""
    if params.is_greedy:
        return logits.argmax(dim=-1)
    return torch.multinomial(naive_probabilities(logits, params, rows), 1).squeeze(-1)


def naive_probabilities(logits: Tensor, params: SamplingParams, rows: Sequence[SamplingRow]) -> Tensor:
    """The distribution [b, vocab] by definition, each step over the whole vocabulary."""
    if (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1.0, 0.0, 0.0):
        logits = _naive_penalties(logits, params, rows)
    logits = logits / params.temperature
    if params.top_k > 0 or params.top_p < 1.0:
        values, ids = logits.sort(dim=-1, descending=True)
        if params.top_k > 0:
            values[:, params.top_k :] = -torch.inf
        probs = values.softmax(dim=-1)
        before = probs.cumsum(dim=-1) - probs
        values = values.masked_fill(before >= params.top_p, -torch.inf)
        logits = torch.full_like(logits, -torch.inf).scatter_(1, ids, values)
    probs = logits.softmax(dim=-1)
    if params.min_p > 0.0:
        probs = probs.masked_fill(probs < params.min_p * probs.amax(dim=-1, keepdim=True), 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def _naive_penalties(logits: Tensor, params: SamplingParams, rows: Sequence[SamplingRow]) -> Tensor:
    counts = torch.zeros_like(logits)
    output = torch.tensor([row.output_token_ids for row in rows], device=logits.device)
    counts.scatter_add_(1, output, torch.ones_like(output, dtype=logits.dtype))
    seen = counts > 0
    seen.scatter_(1, torch.tensor([row.prompt_token_ids for row in rows], device=logits.device), True)
    penalty = torch.where(seen, params.repetition_penalty, 1.0)
    logits = torch.where(logits > 0, logits / penalty, logits * penalty)
    return logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
