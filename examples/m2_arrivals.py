"""Requests arrive while others run: who takes part in which step, and what batches that run to their end would cost.

Run it: python examples/m2_arrivals.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.text import Text

from folovllm import LLM, SamplingParams

PLACES = 3
REQUESTS = [  # (arrives before step, prompt, tokens to generate)
    (1, "Once upon a time", 14),
    (1, "从前", 5),
    (2, "What is a KV cache?", 22),
    (4, "The little cat", 8),
    (5, "Who are you?", 12),
    (7, "One day", 3),
    (16, "In the forest", 6),
]
STYLES = {"P": "bold black on yellow", "d": "black on green", "·": "dim"}

console = Console(highlight=False)
engine = LLM(max_num_seqs=PLACES).engine

# After each step, whoever gained a token took part in it. The first token comes of the prefill, the others of decoding.
timelines = [""] * len(REQUESTS)
prompt_tokens = [0] * len(REQUESTS)
steps = 0
while steps < REQUESTS[-1][0] or engine.has_unfinished_requests():
    steps += 1
    for number, (arrival, prompt, max_tokens) in enumerate(REQUESTS):
        if arrival == steps:
            params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(str(number), prompt, params)
    unfinished = [number for number, (arrival, *_) in enumerate(REQUESTS) if arrival <= steps]
    outputs = {int(output.request_id): output for output in engine.step()}
    for number in unfinished:
        if (output := outputs.get(number)) is not None:
            prompt_tokens[number] = len(output.prompt_token_ids)
            timelines[number] += "P" if len(output.outputs[0].token_ids) == 1 else "d"
        elif "P" not in timelines[number]:
            timelines[number] += "·"

console.print(f"{PLACES} places, {len(REQUESTS)} requests; P: its prompt is computed, d: one token, ·: it waits\n")
console.print(f"{'':<22}tokens  step 1{10:>9}" + "".join(f"{i:>10}" for i in range(20, steps + 1, 10)))
for (arrival, prompt, max_tokens), prompt_len, timeline in zip(REQUESTS, prompt_tokens, timelines, strict=True):
    line = Text(prompt)
    line.pad_right(22 - line.cell_len)
    line.append(f"{prompt_len:>2} + {max_tokens:<2} " + " " * (4 + arrival))
    for mark in timeline:
        line.append(mark, STYLES[mark])
    console.print(line)

# A batch that is formed once holds its places until its longest member is done, and admits nobody meanwhile.
lengths = [max_tokens for _, _, max_tokens in REQUESTS]
static = sum(max(lengths[first : first + PLACES]) for first in range(0, len(lengths), PLACES))
tokens = sum(lengths)
console.print(f"\ncontinuous batching: {tokens} tokens in {steps} steps, {tokens / steps:.2f} at a time")
console.print(f"batches of {PLACES}, each run to its end: at least {static} steps, {tokens / static:.2f} at a time")
