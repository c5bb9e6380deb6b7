"""A question comes while long jobs queue: when does it get its answer, first come first served or by priority?

Run it: python examples/m2_priority.py
"""

from __future__ import annotations

from typing import Literal

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table

from folovllm import LLM, SamplingParams

JOBS = 6
ARRIVES = 6  # the question: before this step
LONG = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def serve(policy: Literal["fcfs", "priority"]) -> dict[str, tuple[int, int]]:
    """{request: (the step that brought its first token, the step that brought its last)}."""
    engine = LLM(max_num_seqs=2, policy=policy).engine
    for i in range(JOBS):
        # A lower number goes first; under "fcfs" any other than 0 is refused.
        engine.add_request(f"job {i}", "Once upon a time", LONG, priority=10 if policy == "priority" else 0)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    step = 0
    while engine.has_unfinished_requests():
        step += 1
        if step == ARRIVES:
            engine.add_request("question", "What is a KV cache?", SHORT, priority=0)
        for output in engine.step():
            first.setdefault(output.request_id, step)
            last[output.request_id] = step
    return {name: (first[name], last[name]) for name in sorted(first)}


fcfs, priority = serve("fcfs"), serve("priority")
table = Table()
table.add_column("request")
table.add_column("fcfs: steps", justify="right")
table.add_column("priority: steps", justify="right")
for name in fcfs:
    style = "bold green" if name == "question" else None
    cells = [f"{first} to {last}" for first, last in (fcfs[name], priority[name])]
    table.add_row(name, *cells, style=style)
console = Console(highlight=False)
console.print(f"{JOBS} jobs, two at a time, and a question that comes before step {ARRIVES}")
console.print(table)
waits = [served["question"][0] - ARRIVES for served in (fcfs, priority)]
console.print(f"the question waits {waits[0]} steps first come first served, {waits[1]} by priority")
console.print("(no running request is sent away for it: it takes the next free place)")
