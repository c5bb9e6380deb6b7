"""Eight sequences decode, and a long prompt comes: what each step computes, and how long the eight have to wait for a
token, with the prompt whole and in chunks.

Run it: python examples/m5_chunked_prefill.py
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table
from rich.text import Text

from folovllm import LLM, SamplingParams

BUDGET = 128  # tokens in a step
SHORT = [
    "Once upon a time",
    "从前",
    "The little cat",
    "What is a KV cache?",
    "One day",
    "Who are you?",
    "你好",
    "A bird",
]
LONG = "Once upon a time there was a little fox who lived in the forest with her mother. " * 30
LONG_PROMPT_TOKENS = 500
LATE = 4  # the long prompt comes after so many steps
CELL = 16  # tokens that one mark in the drawing stands for

console = Console(highlight=False)


@dataclass
class Step:
    decoded: int  # tokens of those who had their first token already
    prompt: int  # tokens of prompts
    seconds: float


def serve(**options: object) -> tuple[list[Step], dict[str, list[int]]]:
    """All steps, and every request's tokens."""
    llm = LLM(dtype="float32", max_model_len=768, **options)  # in bfloat16, chunks may be rounded otherwise
    engine = llm.engine
    llm.generate("warm up", SamplingParams(max_tokens=2), use_tqdm=False)
    for number, prompt in enumerate(SHORT):
        engine.add_request(f"short {number}", prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    long_prompt = llm.get_tokenizer().encode(LONG)[:LONG_PROMPT_TOKENS]
    steps: list[Step] = []
    tokens: dict[str, list[int]] = {}
    before = engine.stats().prompt_tokens
    while engine.has_unfinished_requests() or len(steps) < LATE:
        if len(steps) == LATE:
            engine.add_request("long", long_prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
        began = time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - began
        told = {output.request_id: output.outputs[0].token_ids for output in outputs}
        decoded = sum(len(token_ids) > 1 for token_ids in told.values())  # the first one comes of the prompt
        prompt_tokens, before = engine.stats().prompt_tokens - before, engine.stats().prompt_tokens
        steps.append(Step(decoded, prompt_tokens, seconds))
        tokens |= told
    return steps, tokens


def draw(title: str, steps: list[Step]) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("step", "decodes", "prompt"):
        table.add_column(column, justify="right")
    table.add_column(f"one mark: {CELL} tokens, or what is left")
    table.add_column("ms", justify="right")
    for number, step in enumerate(steps[: LATE + 9], 1):
        bar = Text("█" * -(-step.decoded // CELL), style="green")
        bar.append("▒" * -(-step.prompt // CELL), style="yellow")
        table.add_row(str(number), str(step.decoded), str(step.prompt), bar, f"{1000 * step.seconds:.1f}")
    console.print(table)
    console.print()


whole, tokens_whole = serve(enable_chunked_prefill=False)
chunks, tokens_chunks = serve(enable_chunked_prefill=True, max_num_batched_tokens=BUDGET)
draw("The prompt whole", whole)
draw(f"In chunks beside the decodes, {BUDGET} tokens in a step", chunks)

summary = Table(box=None, pad_edge=False)
for column in ("", "most tokens in a step", "worst gap between two tokens", "usual gap"):
    summary.add_column(column, justify="right" if column else "left")
for name, steps in (("whole", whole), ("chunks", chunks)):
    gaps = sorted(step.seconds for step in steps[1:])
    most = max(step.decoded + step.prompt for step in steps)
    summary.add_row(name, str(most), f"{1000 * gaps[-1]:.1f} ms", f"{1000 * gaps[len(gaps) // 2]:.1f} ms")
console.print(summary)
console.print(f"\nthe same tokens: {tokens_whole == tokens_chunks}")
