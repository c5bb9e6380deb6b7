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
from collections.abc import Sequence
from typing import Any

from folovllm.bench.decoding import WARM_UP_STEPS, DecodingBatch
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed
from folovllm.bench.probe import exceeds_caches
from folovllm.bench.report import Report, Row, by_round, counted, medians
from folovllm.bench.roofline import LayerProbe, ModelCost, largest_layer
from folovllm.bench.workload import BenchModel, progress_bar, require_at_least, vocab_size
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine

COLUMNS = [
    "dtype", "batch", "context", "steps", "weights_gb", "kv_gb", "gflop", "memory_ms", "compute_ms", "floor_ms",
    "step_ms", "share", "output_tokens_per_s",
]  # fmt: skip
BLOCK_SIZE = 16


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "Decode steps at several batch sizes, as a share of what memory and arithmetic of this machine allow."
    command.description = text
    add_model(command)
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64, 256], metavar="N", help="in a step")
    command.add_argument("--context", type=int, metavar="N", default=128, help="prompt tokens of each")
    command.add_argument("--steps", type=int, metavar="N", default=16, help="measured steps of a round")
    add_rounds(command)
    command.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs; on a CPU, layer by layer")
    add_seed(command)
    add_output(command)


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    batch_sizes: Sequence[int],
    context: int = 128,
    steps: int = 16,
    rounds: int = 3,
    device: str | None = None,
    enforce_eager: bool = False,
    seed: int = 0,
) -> Report:
    """A batch is prefilled once; its rounds of steps follow each other, the probes in between."""
    for batch in batch_sizes:
        require_at_least(1, batch_sizes=batch)
    require_at_least(1, context=context, steps=steps, rounds=rounds)
    measured = WARM_UP_STEPS + rounds * steps
    # While a batch's last prompts are computed its first ones may decode already; a step holds 2,048 prompt tokens.
    longest = context + 1 + measured + 16 + max(batch_sizes) * context // 1024
    with progress_bar(2 + len(batch_sizes) * (1 + rounds)) as tick:
        tick("loading")
        options: dict[str, Any] = {"enforce_eager": True} if enforce_eager else {}
        config = config_for_llm(
            model.path,
            dtype=dtype,
            device=device,
            load_format=model.load_format,
            skip_tokenizer_init=True,
            max_model_len=longest,
            max_num_seqs=max(batch_sizes),
            max_num_batched_tokens=max(longest, 2048 + max(batch_sizes)),
            block_size=BLOCK_SIZE,
            num_kv_blocks=max(batch_sizes) * -(-longest // BLOCK_SIZE) + 1,
            **options,
        )
        engine = LLMEngine(config)
        for observe in model.observers:
            observe(engine)
        cost, probe = ModelCost.of_engine(engine), LayerProbe(engine.device, engine.dtype, largest_layer(engine))
        tick("measuring the machine")
        probe.measure(warm_up=True)
        vocab = vocab_size(model)
        found = [_measure(engine, vocab, probe, batch, context, steps, rounds, seed, tick) for batch in batch_sizes]
    rows = [
        _row(dtype, batch, context, contexts, seconds, cost, probe)
        for batch, (contexts, seconds) in zip(batch_sizes, found, strict=True)
    ]
    notes = [
        probe.describe(),
        f"{medians(rounds * steps, 'step')}, {steps} in each of {counted(rounds, 'round')}, after {WARM_UP_STEPS} to "
        "warm up; all sequences decode, greedy. Bytes and operations are those of the middle step.",
        "floor: the longer of bytes at the measured bandwidth and operations at the measured matmul rate, torch's or "
        "the engine's own; share: floor over step.",
    ]
    if not exceeds_caches(cost.weight_bytes, engine.device):
        notes.append("The weights are small enough to stay in caches: no share.")
    samples = [{"step_ms": by_round(seconds, rounds)} for _, seconds in found]
    title = f"Decode against the roofline, {model.label}"
    return Report("decode", title, command, COLUMNS, rows, notes, samples=samples)


def _measure(
    engine: LLMEngine,
    vocab: int,
    probe: LayerProbe,
    batch: int,
    context: int,
    steps: int,
    rounds: int,
    seed: int,
    tick: Any,
) -> tuple[list[int], list[float]]:
    """Each sequence's context in the middle of the measured steps, and what each step took."""
    tick(f"batch {batch}: computing {batch * context:,} tokens of prompts")
    sequences = DecodingBatch(engine, batch, context, vocab, seed)
    before = dict(sequences.lengths)
    seconds: list[float] = []
    for number in range(rounds):
        tick(f"batch {batch}: round {number + 1}/{rounds}")
        probe.measure()
        gc.collect()  # here, and not in the middle of a step
        seconds += [sequences.step() for _ in range(steps)]
    after = dict(sequences.lengths)
    if any(after[name] - before[name] != len(seconds) for name in before):
        raise RuntimeError(f"not all of {batch} sequences gained a token in every step")
    sequences.end()
    # The query of a step is the newest token, which is in its own context.
    return [context + (before[name] + after[name]) // 2 for name in before], seconds


def _row(
    dtype: str,
    batch: int,
    context: int,
    contexts: list[int],
    seconds: list[float],
    cost: ModelCost,
    probe: LayerProbe,
) -> Row:
    num_bytes, flops = cost.decode_step(contexts)
    memory, compute = num_bytes / probe.bandwidth, flops / probe.flops_per_s
    step = statistics.median(seconds)
    floor = max(memory, compute)
    return {
        "dtype": dtype,
        "batch": batch,
        "context": context,
        "steps": len(seconds),
        "weights_gb": cost.weight_bytes / 1e9,
        "kv_gb": (num_bytes - cost.weight_bytes) / 1e9,
        "gflop": flops / 1e9,
        "memory_ms": memory * 1e3,
        "compute_ms": compute * 1e3,
        "floor_ms": floor * 1e3,
        "step_ms": step * 1e3,
        "share": floor / step if exceeds_caches(cost.weight_bytes, probe.device) else None,
        "output_tokens_per_s": batch / step,
    }
