"""What the budget of a step is worth: the smaller it is, the less the others wait for a long prompt, and the longer the
prompt itself.

Run it: python examples/m5_budget.py
"""

from __future__ import annotations

import time

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table

from folovllm import LLM, SamplingParams

OTHERS = 8
PROMPT = [7 + i % 400 for i in range(600)]
DECODE = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


def serve(budget: int) -> tuple[list[int], list[float], list[int]]:
    """Tokens and seconds of the steps from the long prompt's arrival to its first token, and the tokens of the others
    while it comes in."""
    engine = LLM(max_num_batched_tokens=budget, max_model_len=640).engine
    for number in range(OTHERS):
        engine.add_request(str(number), [11 + number, 12, 13], DECODE)
    while engine.stats().prompt_tokens < 3 * OTHERS:  # their prompts are in
        engine.step()
    engine.add_request("long", PROMPT, SamplingParams(temperature=0, max_tokens=1))
    sizes: list[int] = []
    seconds: list[float] = []
    told: list[int] = []
    outputs: list[str] = []
    while "long" not in outputs:
        before, began = engine.stats().prompt_tokens, time.perf_counter()
        outputs = [output.request_id for output in engine.step()]
        seconds.append(time.perf_counter() - began)
        told.append(sum(name != "long" for name in outputs))
        sizes.append(engine.stats().prompt_tokens - before + told[-1])
    return sizes, seconds, told


table = Table(title=f"{OTHERS} sequences decode, and a prompt of {len(PROMPT)} tokens comes", title_justify="left")
for column in ("budget", "steps until its first token", "ms", "longest step, tokens", "ms", "tokens of the others"):
    table.add_column(column, justify="right")
for budget in (16, 32, 64, 128, 256, 640):
    sizes, seconds, told = serve(budget)
    first_token, longest = f"{1000 * sum(seconds):.0f}", f"{1000 * max(seconds):.1f}"
    table.add_row(str(budget), str(len(sizes)), first_token, str(max(sizes)), longest, str(sum(told)))
Console(highlight=False).print(table)
