"""The host's part of a decode step alone: the model's forward and the draw are stubs that answer with fixed tokens.

    schedule ─▶ prepare ─▶ [no forward, no draw] ─▶ update ─▶ outputs
    └──────────────── what the host must do while a GPU computes ────────────────┘

All else is what an engine on a GPU does: it runs ahead, a step is padded for its graph, and the settings of the
sampling kernel are kept. Nothing is launched, so it is measured without one. Neighbours lengthen the thread's CPU time
too, by what they leave in the caches, so that the fastest tenth of the steps is told beside the median.

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from folovllm.bench.report import Line, Report
from folovllm.bench.runs import make_engine
from folovllm.bench.workload import BenchModel, progress_bar, random_prompts, vocab_size
from folovllm.config import EMBEDDED_MODEL
from folovllm.core.step_record import StepRecord
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sample.sampler import SamplerOutput
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.tracing.records import PARTS
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.cuda_graph import capture_sizes
from folovllm.worker.model_runner import ModelRunner
from workshop.bench.rounds import take_turns
from workshop.bench.timer import by_round, counted

COLUMNS = [
    "output_kind", "batch", "steps", "schedule_ms", "prepare_ms", "update_ms", "outputs_ms", "other_ms", "host_ms",
    "median_ms", "wall_ms",
]  # fmt: skip
MEDIANS = {"median": "host", "wall": "wall"}
PARTS_OF = {"schedule": "schedule", "launch": "prepare", "update": "update", "output": "update"}
BLOCK_SIZE = 16
PARTS_SHOWN = ("schedule", "prepare", "update", "outputs")
WARM_UP_STEPS = 2 * BLOCK_SIZE


class StubModel:
    """Hidden states and logits of nothing; all else is asked of the model that is there."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, input_ids: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.zeros(len(input_ids), 1)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class StubSampler(BatchSampler):
    """What the kernel would draw is known: the tokens from 500 on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **(options | {"uses_kernel": True}))

    def draw(self, seqs: Any, logits: Any, positions: Any, drawn: Any = None, drafted: Any = None) -> Any:
        self._kernel_batch_for(seqs)
        return SamplerOutput(fixed_tokens(len(seqs)) if drawn is None else drawn), {}


class StubGraphs:
    """In place of CUDA graphs of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.prompts = SimpleNamespace(shape_for=lambda nums: None)
        self.sizes, self._hidden, self._tokens = sizes, torch.zeros(sizes[-1], 1), fixed_tokens(sizes[-1])

    def replay(self, inputs: Any, size: int, gumbel_params: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._hidden[:size], self._hidden[:size], self._tokens[:size]


def fixed_tokens(count: int) -> torch.Tensor:
    return torch.arange(500, 500 + count)


def choose(*args: Any) -> Components:
    parts = choose_components(*args)
    return replace(parts, sampler=StubSampler, runner=partial(_make_runner, parts.runner))


def _make_runner(make: Any, model: Any, kv_cache: Any, sampling: Any, graphs: Any, **sizes: Any) -> ModelRunner:
    graphs = StubGraphs(capture_sizes(sizes["max_num_seqs"]))
    return make(StubModel(model), kv_cache, sampling, graphs, **sizes)  # type: ignore[no-any-return]


class HostClock:
    """CPU seconds of the host in a step, by part. A listener."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine, self.seconds, self._end = engine, defaultdict[str, float](float), 0.0
        engine.core.clock = time.thread_time

    def __call__(self, record: StepRecord) -> None:
        self._end = record.times[-1]
        for part, (begin, end) in zip(PARTS, pairwise(record.times), strict=True):
            if part in PARTS_OF:
                self.seconds[PARTS_OF[part]] += end - begin

    def steps(self, count: int) -> list[dict[str, float]]:
        """So many steps without a listener's cost, then as many by part: milliseconds by column."""
        found: list[dict[str, float]] = []
        for _ in range(count):
            began, cpu = time.perf_counter(), time.thread_time()
            self.engine.step()
            found.append({"host": time.thread_time() - cpu, "wall": time.perf_counter() - began})
        stop = self.engine.core.listen(self)
        self.engine.step()  # its record began before
        for each in found:
            self.seconds.clear()
            self.engine.step()
            each |= self.seconds | {"outputs": time.thread_time() - self._end}
        stop()
        return [{f"{name}_ms": 1e3 * seconds for name, seconds in each.items()} for each in found]


def run(args: argparse.Namespace) -> Report:
    """Rounds of every batch size in turn, with an output of each request in every step and with the last ones only."""
    batch_sizes, steps, rounds = list(dict.fromkeys(args.batch_sizes)), args.steps, args.rounds
    most, model = max(batch_sizes), BenchModel("the embedded model", EMBEDDED_MODEL, "auto")
    longest = args.context + BLOCK_SIZE + 3 * steps + 2 * WARM_UP_STEPS
    with progress_bar(1 + 2 * (rounds + 1) * len(batch_sizes)) as tick:
        tick("loading")
        engine = make_engine(
            model, "auto", "cpu", choose=choose, skip_tokenizer_init=False, max_num_seqs=most, max_model_len=longest,
            max_num_batched_tokens=max(longest, most * (args.context + BLOCK_SIZE)), block_size=BLOCK_SIZE,
            num_kv_blocks=most * -(-longest // BLOCK_SIZE) + 1, async_scheduling=True,
        )  # fmt: skip
        clock, vocab = HostClock(engine), vocab_size(model)

        def play(kind: RequestOutputKind, batch: int, number: int) -> list[dict[str, float]]:
            params = SamplingParams(temperature=0.6, max_tokens=longest, ignore_eos=True, output_kind=kind)
            # In each step as many sequences begin a block as in any other.
            lengths = [args.context + place % BLOCK_SIZE for place in range(batch)]
            seed = f"{args.seed} {kind.name} {batch} {number}"  # what is known of other rounds is not found
            for place, prompt in enumerate(random_prompts(lengths, vocab, seed)):
                engine.add_request(f"{place}", prompt, params)
            for _ in range(WARM_UP_STEPS):
                engine.step()
            gc.collect()  # here, and not in the middle of a step
            results = clock.steps(steps if number else 1)
            if engine.stats().running_seqs != batch:
                raise RuntimeError(f"{engine.stats().running_seqs} sequences run instead of {batch}")
            for place in range(batch):
                engine.abort_request(f"{place}")
            engine.step()
            return results

        kinds = (RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE)
        settings = [(kind, batch) for kind in kinds for batch in batch_sizes]
        plays = [(f"batch {batch}", partial(play, kind, batch)) for kind, batch in settings]
        found = take_turns(plays, rounds, tick)
    lines: list[Line] = []
    for (kind, batch), of_rounds in zip(settings, found, strict=True):
        results = [result for results in of_rounds for result in results]
        facts: dict[str, Any] = {"output_kind": kind.name.lower(), "batch": batch, "steps": len(results)}
        facts |= {name: statistics.quantiles([each[name] for each in results], n=10)[0] for name in results[0]}
        facts["other_ms"] = facts["host_ms"] - sum(facts[f"{name}_ms"] for name in PARTS_SHOWN)
        facts |= {f"{to}_ms": statistics.median(each[f"{of}_ms"] for each in results) for to, of in MEDIANS.items()}
        lines.append((facts, {"median_ms": by_round([result["host_ms"] / 1e3 for result in results], rounds)}))
    notes = [
        f"The fastest tenth of {rounds * steps} decode steps, {steps} in each of {counted(rounds, 'round')}, settings "
        "in turn, each column's own; then the medians of host and of the wall clock. Else it is the thread's CPU time.",
        "No forward and no draw: fixed tokens. The parts are of other steps than host, which nothing listens to; "
        "other is what they leave of it.",
    ]
    return Report.of(args, "The host's part of a decode step", COLUMNS, lines, notes)
