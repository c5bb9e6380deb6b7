"""Decode steps at several batch sizes, as a share of the roofline: how near a step is to what the machine can do.

    floor = max(bytes / bandwidth, operations / matmul rate)        share = floor / measured step

Both rates are measured in this run, between the rounds. One sequence is bound by the weights; with more of them the
weights are read no more often, until their K and V or the arithmetic cost as much. See roofline.py for what is counted.

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from folovllm.bench.options import add_batch_sizes, add_common, add_model, add_number, source
from folovllm.bench.report import Report, Row, median_of, medians
from folovllm.bench.runs import make_engine
from folovllm.bench.workload import progress_bar, random_prompts, vocab_size
from folovllm.core.step_record import StepRecord
from folovllm.engine.llm_engine import LLMEngine
from folovllm.layers.linear import Linear, LMHead
from folovllm.model_loader.quant_scheme import ONLINE
from folovllm.sampling_params import SamplingParams
from workshop.bench import host_step
from workshop.bench.roofline import ModelCost, Probe, exceeds_caches, linears
from workshop.bench.rounds import keep
from workshop.bench.timer import by_round, counted

COLUMNS = [
    "dtype", "batch", "context", "steps", "weights_gb", "kv_gb", "gflop", "memory_ms", "compute_ms", "floor_ms",
    "step_ms", "host_ms", "share", "output_tokens_per_s",
]  # fmt: skip
BLOCK_SIZE = 16
WARM_UP_STEPS = 5
Measured = tuple[list[int], list[float], float | None]
"""Each sequence's context in the middle of the measured steps; the seconds of each step, and those of the host in one;
None on a CPU."""


class DecodingBatch:
    """Sequences of `prompt_len` random tokens, prefilled and some steps on; end() takes them out again."""

    def __init__(
        self, engine: LLMEngine, count: int, prompt_len: int, vocab_size: int, seed: int = 0, **sampling: Any
    ) -> None:
        """sampling: fields of SamplingParams; greedy without any."""
        self.engine, self.names = engine, [f"batch{count}-{number}" for number in range(count)]
        self.lengths: dict[str, int] = {}
        """Tokens that each has got."""
        most = engine.max_model_len - prompt_len
        params = SamplingParams(**({"temperature": 0.0} | sampling), max_tokens=most, ignore_eos=True)
        prompts = random_prompts([prompt_len] * count, vocab_size, seed + count)
        for name, prompt in zip(self.names, prompts, strict=True):
            engine.add_request(name, prompt, params)
        gc.collect()  # here, and not in the middle of a step
        while len(self.lengths) < count:
            self.step()
        for _ in range(WARM_UP_STEPS):
            self.step()

    def step(self) -> float:
        """What it took, in seconds."""
        start = time.perf_counter()
        outputs = self.engine.step()
        seconds = time.perf_counter() - start
        self.lengths |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        return seconds

    def end(self) -> None:
        for name in self.names:
            self.engine.abort_request(name)
        while self.engine.has_unfinished_requests():
            self.engine.step()


@contextmanager
def host_seconds(engine: LLMEngine) -> Iterator[list[float]]:
    """What the host does in each step inside, but for waiting for tokens; empty on a CPU, which computes the model
    itself."""
    found: list[float] = []

    def listener(record: StepRecord) -> None:
        begin, _, launched, came, _, end = record.times
        found.append(launched - begin + end - came)

    stop = engine.core.listen(listener) if engine.device.type == "cuda" else lambda: None
    try:
        yield found
    finally:
        stop()


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "Decode steps at several batch sizes, as a share of what memory and arithmetic of this machine allow."
    command.description = text
    add_model(command)
    add_batch_sizes(command, 1, 8, 64, 256)
    add_number(command, "--context", default=128, help="prompt tokens of each")
    add_number(command, "--steps", default=16, help="measured steps of a round")
    text = "round the weights (default: as the checkpoint has them)"
    command.add_argument("--quantization", choices=list(ONLINE), help=text)
    command.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs; on a CPU, layer by layer")
    text = "the host alone: the embedded model's steps without forward and draw, on one core and without a GPU"
    command.add_argument("--stub", action="store_true", help=text)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    """A batch is prefilled once; its rounds of steps follow each other, the probes in between."""
    if args.stub:
        return host_step.run(args)
    batch_sizes, context, rounds, steps = args.batch_sizes, args.context, args.rounds, args.steps
    most = max(batch_sizes)
    # While a batch's last prompts are computed its first ones may decode already; a step holds 2,048 prompt tokens.
    longest = context + 1 + WARM_UP_STEPS + rounds * steps + 16 + most * context // 1024
    sizes: dict[str, Any] = {
        "max_model_len": longest, "max_num_seqs": most, "max_num_batched_tokens": max(longest, 2048 + most),
        "block_size": BLOCK_SIZE, "num_kv_blocks": most * -(-longest // BLOCK_SIZE) + 1,
    }  # fmt: skip
    sizes |= {"enforce_eager": args.enforce_eager, "quantization": args.quantization}
    with source(args) as model, progress_bar(2 + len(batch_sizes) * (1 + rounds)) as tick:
        tick("loading")
        engine = make_engine(model, args.dtype, args.device, **sizes)
        cost, probe = ModelCost.of_engine(engine), Probe(engine.device, engine.dtype, largest_layer(engine))
        tick("measuring the machine")
        probe.measure(warm_up=True)
        vocab = vocab_size(model)
        found: list[Measured] = []
        for batch in batch_sizes:
            found.append(_measure(engine, vocab, probe, batch, args, tick))
            keep(args, report := _report(args, model.label, found, cost, probe))
    return report


def _report(args: argparse.Namespace, label: str, found: list[Measured], cost: ModelCost, probe: Probe) -> Report:
    rounds, steps = args.rounds, args.steps
    lines = [
        (_facts(args, contexts, seconds, host, cost, probe), {"step_ms": by_round(seconds, rounds)})
        for contexts, seconds, host in found
    ]
    notes = [
        probe.describe(),
        f"{medians(rounds * steps, 'step')}, {steps} in each of {counted(rounds, 'round')}, after {WARM_UP_STEPS} to "
        "warm up; all sequences decode, greedy. Bytes and operations are those of the middle step.",
        "floor: the longer of bytes at the measured bandwidth and operations at the measured matmul rate, torch's or "
        "the engine's own; share: floor over step. host: what it does in a step, on a GPU beside it.",
    ]
    if not exceeds_caches(cost.weight_bytes, probe.device):
        notes.append("The weights are small enough to stay in caches: no share.")
    return Report.of(args, f"Decode against the roofline, {label}", COLUMNS, lines, notes)


def _measure(engine: LLMEngine, vocab: int, probe: Probe, batch: int, args: argparse.Namespace, tick: Any) -> Measured:
    tick(f"batch {batch}: computing {batch * args.context:,} tokens of prompts")
    sequences = DecodingBatch(engine, batch, args.context, vocab, args.seed)
    before = dict(sequences.lengths)
    seconds = list[float]()
    with host_seconds(engine) as host:
        for number in range(args.rounds):
            tick(f"batch {batch}: round {number + 1}/{args.rounds}")
            probe.measure()
            gc.collect()  # here, and not in the middle of a step
            seconds += [sequences.step() for _ in range(args.steps)]
    after = dict(sequences.lengths)
    if any(after[name] - before[name] != len(seconds) for name in before):
        raise RuntimeError(f"not all of {batch} sequences gained a token in every step")
    sequences.end()
    # The query of a step is the newest token, and sees itself, too.
    contexts = [args.context + (before[name] + after[name]) // 2 for name in before]
    return contexts, seconds, median_of(host)


def largest_layer(engine: LLMEngine) -> Linear:
    """But for the one that makes the logits."""
    layers = [layer for layer in linears(engine) if not isinstance(layer, LMHead)]
    return max(layers, key=lambda layer: layer.in_features * layer.out_features)


def _facts(
    args: argparse.Namespace, contexts: list[int], seconds: list[float], host: float | None, cost: ModelCost,
    probe: Probe,
) -> Row:  # fmt: skip
    num_bytes, flops = cost.decode_step(contexts)
    memory, compute = num_bytes / probe.bandwidth, flops / probe.flops_per_s
    step, floor, weights = statistics.median(seconds), max(memory, compute), cost.weights_read(len(contexts))
    share = floor / step if exceeds_caches(weights, probe.device) else None
    values = (
        args.quantization or args.dtype, len(contexts), args.context, len(seconds), weights / 1e9,
        (num_bytes - weights) / 1e9, flops / 1e9,
        memory * 1e3, compute * 1e3, floor * 1e3, step * 1e3, None if host is None else host * 1e3, share,
        len(contexts) / step,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))
