"""Which sequences decode in each step of nano-vllm's workload, without an engine.

vLLM: none
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from folovllm.bench.shapes import ModelShape
from workshop.bench.gpu_kernels import PRODUCTS, SHAPE
from workshop.bench.presets import PRESETS

BUDGET = 2048  # tokens of a step, prompts' and decodes'
STRIDE = 8  # steps of the workload of which one is computed


DATA = Path(__file__).parents[2] / "docs/benchmarks/data"


@cache
def host_us(requests: int) -> float:
    """What the host does in a decode step of LLM.generate, as `decode --stub` measured it on a core of a CPU, and in
    proportion between. The engine runs ahead: a step takes as long as the device or the host, whichever is longer."""
    rows = json.loads((DATA / "decode-stub.json").read_text(encoding="utf-8"))["rows"]
    known = {row["batch"]: 1e3 * row["host_ms"] for row in rows if row["output_kind"] == "final_only"}
    return float(np.interp(requests, list(known), list(known.values())))


def output_tokens() -> int:
    return sum(PRESETS["nano-vllm"].draw()[1])


def workload_seconds(step_us: Callable[[list[int]], float]) -> float:
    """All decode steps, each as long as the device or the host takes, and the operations of the prompts at the rate of
    full waves, which share their weights with the decodes. Every 8th step is computed and taken for those around it,
    for the next are nearly the same."""
    (prompts, outputs), shape = PRESETS["nano-vllm"].draw(), ModelShape.of(SHAPE)
    lengths = [len(prompt) for prompt in prompts]
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    prefill = (2 * shape.body * sum(lengths) + 4 * pairs * shape.layers * shape.heads * shape.head_dim) / PRODUCTS
    steps = [contexts for contexts in decode_steps(prompts, outputs) if contexts]
    shown = range(0, len(steps), STRIDE)
    longer = {at: max(step_us(steps[at]), host_us(len(steps[at]))) for at in shown}
    return prefill + sum(min(STRIDE, len(steps) - at) * us for at, us in longer.items()) / 1e6


def contexts_of_first_full_step(budget: int = BUDGET) -> list[int]:
    """Tokens of each sequence of nano-vllm's workload in the first step in which all of them decode."""
    prompts, outputs = PRESETS["nano-vllm"].draw()
    return next(contexts for contexts in decode_steps(prompts, outputs, budget) if len(contexts) == len(prompts))


def decode_steps(prompts: Sequence[Sequence[int]], outputs: Sequence[int], budget: int = BUDGET) -> Iterator[list[int]]:
    """Of each step, the tokens of the sequences that decode in it.

    Prompts come in in order. A step takes all decodes and fills its budget with prompts; a prompt's last token brings
    the first of its output.
    """
    missing, said = [len(prompt) for prompt in prompts], [0] * len(prompts)
    while True:
        decodes = [n for n, rest in enumerate(missing) if not rest and said[n] < outputs[n]]
        if not decodes and not any(missing):
            return
        yield [len(prompts[number]) + said[number] for number in decodes]
        left = budget - len(decodes)
        for number in decodes:
            said[number] += 1
        for number, rest in enumerate(missing):
            taken = min(rest, left)
            missing[number], left = rest - taken, left - taken
            if taken and not missing[number]:
                said[number] = 1
