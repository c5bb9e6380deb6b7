"""What a fast sampler is worth to a whole run: the same engine twice, the second with sampling as it is first written.

    64 requests × 128 tokens, top_k 40, top_p 0.9, a vocabulary of 50,257: the preset gpt2-sampling

Everything but the draw is the same code: weights, prompts, scheduling, attention. roseinfer publishes this experiment
on GPT-2: 2,097 tokens/s, and 2,438 with a fast sampler.

vLLM: none
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from folovllm.bench.contestant import FoloVLLM, Run
from folovllm.bench.lengths import Lengths
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed, command_line, source
from folovllm.bench.race import take_turns
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import BenchModel, dtype_of, progress_bar, require_at_least, vocab_size
from folovllm.engine.parts import Parts, choose_parts
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.sampler import DrawingRows, Sampler, SamplerOutput
from folovllm.sampling_params import SamplingParams
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.model_runner_output import Failures
from workshop.bench.ablations import leave_out_draw
from workshop.bench.presets import PRESETS, Preset
from workshop.bench.run_preset import check_room, shifted
from workshop.bench.sampler import naive_sample

COLUMNS = ["sampling", "dtype", "vocab", "requests", "prompt_tokens", "output_tokens", "seconds",
           "output_tokens_per_s", "decode_step_ms", "draw_ms", "speedup"]  # fmt: skip
PRESET = "gpt2-sampling"
BLOCK_SIZE = 16
WARM_UP_TOKENS = 4


class NaiveSampler(Sampler):
    """Every row over the whole vocabulary, all under the same settings."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__()
        self.params = params

    def sample(
        self, raw: Tensor, edited: Tensor, metadata: SamplingMetadata, drawing: DrawingRows | None = None
    ) -> SamplerOutput:
        return SamplerOutput(naive_sample(edited.float(), self.params, []))


class ClockedSampler(BatchSampler):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.seconds: list[float] = []

    def draw(self, *args: Any, **kwargs: Any) -> tuple[SamplerOutput, Failures]:
        began = time.perf_counter()
        result = super().draw(*args, **kwargs)
        self.seconds.append(time.perf_counter() - began)
        return result


def _choose_clocked(*args: Any) -> Parts:
    return replace(choose_parts(*args), sampler=ClockedSampler)


class Drawing(FoloVLLM):
    """Our engine, with a clock around its draws. A GPU only queues them: there the clock would say nothing."""

    def __init__(self, name: str, preset: Preset, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "choose": _choose_clocked})
        self.name, self.sampling = name, preset.sampling

    @property
    def draw_seconds(self) -> list[float]:
        sampling = cast(ClockedSampler, self.engine.runner.sampling)
        return sampling.seconds if self.engine.device.type == "cpu" else []

    def draw_naively(self, params: SamplingParams) -> None:
        sampling = self.engine.runner.sampling
        if sampling.uses_kernel:
            leave_out_draw(self.engine)
        sampling.sampler = NaiveSampler(params)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = f"Whole runs of the preset {PRESET}: naive sampling, then ours, in turn."
    add_model(command)
    preset = PRESETS[PRESET]
    command.add_argument("--num-requests", type=int, metavar="N", default=preset.num_requests, help="in each round")
    longest = preset.longest_output
    command.add_argument("--output-len", type=int, metavar="N", default=longest, help="new tokens of each")
    add_rounds(command, default=5)
    add_seed(command)
    add_output(command)
    command.set_defaults(shape="gpt2-sized")


def from_args(args: argparse.Namespace) -> Report:
    preset = replace(PRESETS[PRESET], seed=args.seed, num_requests=args.num_requests, longest_output=args.output_len)
    options = {"device": args.device, "rounds": args.rounds}
    with source(args) as model:
        dtype = dtype_of(model, args.dtype, args.device)
        return run(model, preset, command=command_line(args), dtype=dtype, **options)


def run(
    model: BenchModel,
    preset: Preset,
    *,
    command: str,
    dtype: str,
    device: str | None = None,
    rounds: int = 3,
) -> Report:
    """Both in turn. Raises ValueError: a preset without requests, or too long for the model."""
    require_at_least(1, num_requests=preset.num_requests, input_len=preset.longest_prompt, rounds=rounds)
    require_at_least(2, output_len=preset.longest_output)
    drawn, outputs = preset.draw()
    lengths, vocab = Lengths([len(prompt) for prompt in drawn], outputs), vocab_size(model)
    check_room(model, preset, lengths.longest)
    blocks = sum(-(-(p + o) // BLOCK_SIZE) + 1 for p, o in zip(lengths.prompts, outputs, strict=True))
    options = {"num_kv_blocks": blocks + 1, "block_size": BLOCK_SIZE, "max_num_seqs": len(outputs)}

    def work(number: int) -> tuple[list[list[int]], list[int]]:
        """Other ids in each round, so that no cache of prefixes remembers them from the one before."""
        prompts = shifted(drawn, number, vocab)
        return prompts, outputs if number else [min(WARM_UP_TOKENS, length) for length in outputs]

    with progress_bar(2 + 2 * (rounds + 1)) as tick:
        contestants = []
        for name in ("naive", "fast"):
            tick(f"loading the engine with {name} sampling")
            contestants.append(Drawing(name, preset, model, dtype, device, lengths.longest, **options))
        contestants[0].draw_naively(SamplingParams(**preset.sampling))
        runs = take_turns(contestants, rounds, work, tick)
    samples = [_samples(results, sum(outputs)) for results in runs]
    rows: list[Row] = []
    for contestant, kept in zip(contestants, samples, strict=True):
        found = {key: statistics.median(values) for key, values in kept.items()}
        draws = contestant.draw_seconds
        row = {"sampling": contestant.name, "dtype": dtype, "vocab": vocab, "requests": len(outputs), **found}
        row |= {"prompt_tokens": sum(lengths.prompts), "output_tokens": sum(outputs)}
        row["draw_ms"] = statistics.median(draws) * 1e3 if draws else None
        row["speedup"] = statistics.median(samples[0]["seconds"]) / found["seconds"]
        rows.append({column: row[column] for column in COLUMNS})
    notes = [
        f"{medians(rounds, 'round')} after a warm-up, the two in turn in one process; all requests at once, seed "
        f"{preset.seed}. Temperature {preset.temperature:g}, top_k {preset.top_k}, top_p {preset.top_p:g}.",
        "naive: sort, softmax, cumsum, mask, scatter, softmax, multinomial, over the whole vocabulary. All else is the "
        "same engine.",
    ]
    if rows[0]["draw_ms"] is not None:
        notes.append("draw: sampling's part of a decode step.")
    return Report("sampler", f"Sampling in a whole run, {model.label}", command, COLUMNS, rows, notes, samples=samples)


def _samples(runs: list[Run], num_tokens: int) -> dict[str, list[float]]:
    seconds = [result.seconds if result.wall_seconds is None else result.wall_seconds for result in runs]
    return {
        "seconds": seconds,
        "output_tokens_per_s": [num_tokens / each for each in seconds],
        "decode_step_ms": [
            statistics.median(step.seconds for step in result if not step.prefill) * 1e3 for result in runs
        ],
    }
