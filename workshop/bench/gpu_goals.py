"""The goals for an H200: what was measured, what is aimed at, and what the changes should bring.

A predicted figure is the measured one times what the model says of the changes, so that an error that both of the
model's figures share is none.

vLLM: none
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from folovllm.bench.report import Line, Report
from workshop.bench.gpu_changes import (
    BF16,
    SETTINGS,
    Change,
    apply,
    calibrated,
    first_token_us,
    measured_contexts,
    measured_us,
    read_rows,
)
from workshop.bench.gpu_others import (
    gain_of_codes_large,
    gain_of_codes_small,
    gain_of_drafts,
    gain_with_head_in_8_bits,
)
from workshop.bench.workload_steps import host_us, workload_seconds

COLUMNS = ["goal", "measured", "wanted", "predicted", "reached"]


@dataclass(frozen=True)
class Goal:
    """`measured`: before the changes, None if it was not. `least`: a smaller figure misses it; else a larger one."""

    name: str
    measured: float | None
    wanted: float
    predict: Callable[[], float | None]
    least: bool = True

    def reached(self, figure: float) -> bool:
        return figure >= self.wanted if self.least else figure <= self.wanted


def workload_gain(*more: Change) -> float:
    before = workload_seconds(lambda contexts: calibrated(contexts).total)
    return before / workload_seconds(lambda contexts: apply([*BF16.values(), *more], calibrated(contexts)).total)


def step_gain(batch: int) -> float:
    step = calibrated(measured_contexts(batch))
    return max(step.total, host_us(batch)) / max(apply(BF16.values(), step).total, host_us(batch))


def filter_share(batch: int) -> float:
    """What both filters add to a step, in percent of it."""
    step = apply(BF16.values(), calibrated(measured_contexts(batch)))
    return 100 * (SETTINGS["top-k and top-p, by many programs"](step).total / step.total - 1)


def of_one_filter(batch: int) -> float:
    """As it was measured: top-p alone, in percent of the step."""
    draws = {row["setting"]: row["us"] for row in read_rows("sampling-h200") if row["rows"] == batch}
    return 100 * (draws["top_p"] - draws["temperature"]) / measured_us(batch)


def goals() -> list[Goal]:
    (workload,) = (row["output_tokens_per_s"] for row in read_rows("preset-nano-vllm-h200"))
    (first,) = (row["later_first_token_ms"] for row in read_rows("startup-h200"))
    rates = {row["batch"]: row["output_tokens_per_s"] for row in read_rows("decode-h200")}
    eight_bits = SETTINGS["KV cache in 8 bits"]
    found = [
        Goal("the workload, tokens/s", workload, 27_500, lambda: workload * workload_gain()),
        Goal("the workload, cache in 8 bits, tokens/s", None, 36_000, lambda: workload * workload_gain(eight_bits)),
    ]
    for batch, wanted in ((1, 1_400), (8, 8_500), (64, 23_500)):
        name, rate = f"{batch} at 1,024 tokens, tokens/s", rates[batch]
        found.append(Goal(name, rate, wanted, lambda rate=rate, batch=batch: rate * step_gain(batch)))  # type: ignore[misc]
    found.append(Goal("first token of a prompt of 32, ms", first, 4, lambda: first_token_us(32) / 1e3, least=False))
    for batch, wanted in ((1, 5), (256, 2)):
        name, before = f"top-k 20 with top-p 0.95, {batch}: % more", of_one_filter(batch)
        found.append(Goal(name, before, wanted, lambda batch=batch: filter_share(batch), least=False))  # type: ignore[misc]
    for rows, least in ((1, 2.5), (16, 2.0), (256, 0.9)):
        name = f"W4A16 over bf16, 8B, {rows} rows"
        found.append(Goal(name, None, least, lambda rows=rows: gain_of_codes_large(rows)))  # type: ignore[misc]
    codes, plain = decode_rates()
    found.append(Goal("W4A16 over bf16, 0.6B, 8 requests", codes / plain, 1.0, gain_of_codes_small))
    ratios = {row["requests"]: row["ratio"] for row in read_rows("speculation-qwen3-h200")}
    for requests, least in ((8, 1.9), (32, 1.5)):
        name, ratio = f"drafts, 80% right, {requests} requests", ratios[requests]
        found.append(Goal(name, ratio, least, lambda requests=requests: gain_of_drafts(requests)))  # type: ignore[misc]
    return found


def decode_rates() -> list[float]:
    """Tokens a second of 8 requests, with weights in 4 bits and in bfloat16."""
    return [read_rows(f"throughput-{kind}-h200")[0]["decode_tokens_per_s"] for kind in ("w4a16", "bfloat16")]


def run(args: argparse.Namespace) -> Report:
    lines: list[Line] = []
    for goal in goals():
        figure = goal.predict()
        reached = None if figure is None else "yes" if goal.reached(figure) else "no"
        values = goal.name, goal.measured, goal.wanted, figure, reached
        lines.append((dict(zip(COLUMNS, values, strict=True)), {}))
    prompts = ", ".join(f"{first_token_us(size) / 1e3:.1f} after {size:,}" for size in (32, 512, 1024, 2048))
    notes = [
        "Predictions: the engine has not been measured with its changes. Of filters, one alone was measured.",
        f"Milliseconds to the first token of a prompt alone: {prompts} tokens.",
        f"W4A16 over bf16, 8B, 1 rows, with quantize_head: {gain_with_head_in_8_bits():.2f}.",
    ]
    return Report.of(args, "Goals on an H200", COLUMNS, lines, notes)
