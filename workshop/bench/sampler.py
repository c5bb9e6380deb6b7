"""The sampler against the formulation that is usually written first: everything over the whole vocabulary.

The naive one sorts, takes softmax and running sum, masks, scatters back to the vocabulary's order, takes softmax again
and calls torch.multinomial; what a setting does not need, it leaves out too. Both get the same float32 logits.

On a GPU a third one takes its turn where there is one: the same sampler with a Triton kernel.

vLLM: none
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from folovllm.attention.backend import get_backend_class
from folovllm.bench.options import add_output, add_rounds, add_seed, command_line
from folovllm.bench.report import Report, Row, by_round
from folovllm.bench.workload import progress_bar, require_at_least
from folovllm.sample.groups import RowGroup, group_rows, sample_groups
from folovllm.sample.gumbel import GumbelParams, GumbelRows, host_params
from folovllm.sample.row import SamplingRow
from folovllm.sample.sampler import Sampler
from folovllm.sampling_params import SamplingParams
from folovllm.utils.devices import default_device

COLUMNS = ["setting", "logits", "vocab", "batch", "naive_ms", "sampler_ms", "speedup"]
# Where the kernel runs. The ratio is sampler_ms / triton_ms; neither is there for greedy, which needs no kernel.
KERNEL_COLUMNS = ["triton_ms", "triton_ratio"]
SECONDS_PER_CASE = 1.0
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128  # what penalties have to look at


@dataclass(frozen=True)
class Case:
    """One setting, and the kind of logits it meets."""

    label: str
    params: SamplingParams
    logits: str = "normal"


def cases() -> list[Case]:
    penalties = SamplingParams(repetition_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.2)
    return [
        Case("greedy", SamplingParams(temperature=0)),
        Case("temperature=0.8", SamplingParams(temperature=0.8)),
        Case("top_k=40, top_p=0.9", SamplingParams(top_k=40, top_p=0.9)),
        Case("top_p=0.9", SamplingParams(top_p=0.9), "peaked"),
        Case("top_p=0.9", SamplingParams(top_p=0.9)),
        Case("min_p=0.05", SamplingParams(min_p=0.05)),
        Case("three penalties", penalties),
    ]


def make_logits(kind: str, batch: int, vocab_size: int, seed: int = 0) -> Tensor:
    """`normal`: independent with deviation 3, the hard case: top_p=0.9 keeps thousands. `peaked`: falling with the
    logarithm of the rank, as a language model's do, in random order: top_p=0.9 keeps dozens."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch, vocab_size, generator=generator)
    if kind == "normal":
        return noise * 3
    ranks = noise.argsort(dim=-1).argsort(dim=-1) + 1
    return -1.5 * ranks.float().log()


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Sampling from random logits: this engine's sampler against a full sort and scatter."
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="rows of logits")
    command.add_argument("--vocab-sizes", type=int, nargs="+", default=[50257, 151936], help="columns")
    add_rounds(command, default=5)
    add_seed(command)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    options = {name: getattr(args, name) for name in ("rounds", "seed")}
    return run(args.batch_sizes, args.vocab_sizes, command=command_line(args), **options)


def run(
    batch_sizes: Sequence[int] = (1, 8, 64),
    vocab_sizes: Sequence[int] = (50_257, 151_936),
    *,
    command: str = "python -m workshop.bench sampler",
    rounds: int = 5,
    seconds_per_case: float | None = None,
    seed: int = 0,
) -> Report:
    """Ours and the naive one in turn, for `rounds` rounds or `seconds_per_case` (None: a second), whichever is longer.

    On the GPU where there is one, and there with the kernel as a third.
    """
    for batch in batch_sizes:
        require_at_least(1, batch_sizes=batch)
    for vocab_size in vocab_sizes:
        require_at_least(1, vocab_sizes=vocab_size)
    require_at_least(1, rounds=rounds)
    seconds = SECONDS_PER_CASE if seconds_per_case is None else seconds_per_case
    device = torch.device(default_device())
    with_kernel = has_kernel(device)
    rows: list[Row] = []
    samples: list[dict[str, list[float]]] = []
    with progress_bar(len(batch_sizes) * len(vocab_sizes) * len(cases())) as tick, torch.inference_mode():
        for case in cases():
            for vocab_size in vocab_sizes:
                for batch in batch_sizes:
                    tick(f"{case.label}, vocabulary {vocab_size:,}, batch {batch}")
                    logits = make_logits(case.logits, batch, vocab_size, seed).to(device)
                    row, times = _measure(case, logits, with_kernel, rounds, seconds)
                    rows.append(row)
                    samples.append(times)
    notes = [
        "Medians, the two in turn in one process; a speedup above 1 means that the sampler is faster.",
        "naive: sort, softmax, cumsum, mask, scatter, softmax, multinomial, as far as the setting needs them.",
    ]
    columns = COLUMNS
    if with_kernel:
        columns = [*COLUMNS, *KERNEL_COLUMNS]
        notes.append("triton: one kernel for filters and draw; a ratio above 1 means that it beats the torch path.")
    return Report("sampler", "Sampling, one step", command, columns, rows, notes, samples=samples)


def has_kernel(device: torch.device) -> bool:
    """Whether a Triton kernel takes part: on a GPU that Triton knows."""
    return device.type == "cuda" and get_backend_class("triton").unavailable_reason(device) is None


def _measure(
    case: Case, logits: Tensor, with_kernel: bool, min_rounds: int, seconds: float
) -> tuple[Row, dict[str, list[float]]]:
    batch, vocab_size = logits.shape
    rows = _rows(case.params, batch, vocab_size)
    groups = group_rows(rows, vocab_size, logits.device)  # once per membership, not per step
    sampler = Sampler()
    contestants: dict[str, Callable[[], object]] = {
        "naive": lambda: naive_sample(logits, case.params, rows),
        "sampler": lambda: sample_groups(sampler, logits, groups),
    }
    if with_kernel and not case.params.is_greedy:
        contestants["triton"] = _in_kernel(logits, groups, rows)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant()  # warm-up, and the kernel's compilation
    end = time.perf_counter() + seconds
    while len(times["naive"]) < min_rounds or time.perf_counter() < end:
        for name, contestant in contestants.items():
            _wait(logits.device)
            start = time.perf_counter()
            contestant()
            _wait(logits.device)
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(taken) * 1e3 for name, taken in times.items()}
    row: Row = {
        "setting": case.label,
        "logits": case.logits,
        "vocab": vocab_size,
        "batch": batch,
        "naive_ms": medians["naive"],
        "sampler_ms": medians["sampler"],
        "speedup": medians["naive"] / medians["sampler"],
    }
    if with_kernel:
        kernel_ms = medians.get("triton")
        ratio = None if kernel_ms is None else medians["sampler"] / kernel_ms
        row |= {"triton_ms": kernel_ms, "triton_ratio": ratio}
    return row, {f"{name}_ms": by_round(taken, min_rounds) for name, taken in times.items()}


def _in_kernel(logits: Tensor, groups: list[RowGroup], rows: list[SamplingRow]) -> Callable[[], object]:
    """As the engine does it: logits as they came go straight to the kernel, edited ones by way of the sampler."""
    settings = host_params(rows, range(len(rows)), logits.shape[-1])
    gumbel_params = GumbelParams(torch.from_numpy(settings).to(logits.device))
    offsets = torch.arange(len(rows), device=logits.device)
    if not any(group.metadata.processors for group in groups):
        return lambda: gumbel_params.draw(logits, offsets)
    sampler, gumbel = Sampler(), GumbelRows(gumbel_params, offsets, drawn=offsets)
    return lambda: sample_groups(sampler, logits, groups, gumbel)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rows(params: SamplingParams, batch: int, vocab_size: int) -> list[SamplingRow]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocab_size, (batch, PROMPT_TOKENS + OUTPUT_TOKENS), generator=generator).tolist()
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
