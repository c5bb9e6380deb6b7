"""What tracing costs: the same decode steps with a tracer and without, in turn.

    engine A   step        step        step          round 1: A is traced
    engine B        step        step        step     round 2: B is traced, and so on

Two equal engines take turns step by step, so that a slow moment of the machine slows both; which of them is traced
changes from round to round, so that no engine's luck counts for one side.

vLLM: none
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from folovllm.bench.report import Report, Row, counted, medians
from folovllm.bench.step import EMBEDDED, PROMPT_TOKENS, WARM_UP_STEPS
from folovllm.bench.workload import progress_bar, random_prompts, require_at_least, vocab_size
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams
from folovllm.tracing.attach import attach
from folovllm.tracing.writer import TraceWriter

COLUMNS = ["batch", "steps", "off_ms", "on_ms", "cost", "cost_low", "cost_high", "bytes_per_step"]


def run(batch_sizes: Sequence[int], *, command: str, steps: int = 100, rounds: int = 6) -> Report:
    """`cost`: how much longer the median step takes with a tracer, of all rounds; `low` and `high`: of single ones."""
    for batch in batch_sizes:
        require_at_least(1, batch_sizes=batch)
    require_at_least(1, steps=steps)
    require_at_least(2, rounds=rounds)
    rows: list[Row] = []
    with progress_bar(1 + rounds * len(batch_sizes)) as tick, tempfile.TemporaryDirectory() as folder:
        tick("loading")
        engines = [_engine(max(batch_sizes), steps) for _ in range(2)]
        for batch in batch_sizes:
            off: list[list[float]] = []
            on: list[list[float]] = []
            num_bytes = 0
            for number in range(rounds):
                tick(f"batch {batch}, round {number + 1}/{rounds}")
                plain, traced = engines if number % 2 else reversed(engines)
                writer = TraceWriter(Path(folder) / "run.jsonl")
                without, with_tracer, num_bytes = _measure(plain, traced, writer, batch, steps, f"{batch}-{number}")
                off.append(without)
                on.append(with_tracer)
            rows.append(_row(batch, off, on, num_bytes / steps))
    notes = [
        f"{medians(rounds * steps, 'decode step')} of each kind, {steps} in each of {counted(rounds, 'round')}, with "
        "and without in turn, step by step.",
        "cost: the median step with a tracer over that without, less 1; low and high: of single rounds.",
        f"The embedded model in {str(engines[0].dtype).removeprefix('torch.')}, greedy, prompts of {PROMPT_TOKENS} "
        "tokens.",
    ]
    return Report("trace", "What a trace costs", command, COLUMNS, rows, notes)


def _engine(batch: int, steps: int) -> LLMEngine:
    config = config_for_llm(
        None,
        max_num_seqs=batch,
        max_num_batched_tokens=max(2048, batch * PROMPT_TOKENS),
        max_model_len=PROMPT_TOKENS + 1 + WARM_UP_STEPS + steps + 1,
    )
    return LLMEngine(config)


def _measure(
    plain: LLMEngine, traced: LLMEngine, writer: TraceWriter, batch: int, steps: int, name: str
) -> tuple[list[float], list[float], int]:
    """Seconds of each step without and with a tracer, and the bytes that these steps wrote."""
    attached = attach(traced, writer)
    prompts = random_prompts(batch, PROMPT_TOKENS, vocab_size(EMBEDDED), seed=batch)
    params = SamplingParams(temperature=0, max_tokens=plain.max_model_len, ignore_eos=True)
    names = [f"{name}-{number}" for number in range(batch)]
    for engine in (plain, traced):
        for request_id, prompt in zip(names, prompts, strict=True):
            engine.add_request(request_id, prompt, params)
    gc.collect()  # here, and not in the middle of a step
    for _ in range(1 + WARM_UP_STEPS):
        _seconds(plain)
        _seconds(traced)
    before = writer.num_bytes
    pairs = []
    for number in range(steps):  # which is first changes as well
        if number % 2:
            on, off = _seconds(traced), _seconds(plain)
        else:
            off, on = _seconds(plain), _seconds(traced)
        pairs.append((off, on))
    num_bytes = writer.num_bytes - before
    for engine in (plain, traced):
        for request_id in names:
            engine.abort_request(request_id)
    attached.close()
    return [off for off, _ in pairs], [on for _, on in pairs], num_bytes


def _seconds(engine: LLMEngine) -> float:
    start = time.perf_counter()
    engine.step()
    return time.perf_counter() - start


def _row(batch: int, off: list[list[float]], on: list[list[float]], bytes_per_step: float) -> Row:
    costs = [statistics.median(b) / statistics.median(a) - 1 for a, b in zip(off, on, strict=True)]
    all_off = statistics.median(seconds for samples in off for seconds in samples)
    all_on = statistics.median(seconds for samples in on for seconds in samples)
    return {
        "batch": batch,
        "steps": sum(map(len, on)),
        "off_ms": all_off * 1e3,
        "on_ms": all_on * 1e3,
        "cost": all_on / all_off - 1,
        "cost_low": min(costs),
        "cost_high": max(costs),
        "bytes_per_step": round(bytes_per_step),
    }
