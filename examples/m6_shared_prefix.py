"""Many questions behind the same worked examples: the examples are computed once, and a first token comes sooner.

Run it: python examples/m6_shared_prefix.py
"""

from __future__ import annotations

from statistics import median

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table

from folovllm import LLM, SamplingParams
from folovllm.outputs import RequestOutput

NAMES = ["Tom", "Sue", "Ben", "Amy", "Max", "Lily", "Sam", "Mia", "Tim", "Anna", "Jack", "Zoe"]
TOYS = ["ball", "kite", "boat", "drum", "doll", "hat", "cup", "book", "bell", "sled", "shell", "ring"]
EXAMPLES = "".join(
    f"Story: {name} had a red {toy}. {name} lost it in the park and a bird found it.\n"
    f"Question: What did {name} lose?\nAnswer: {name} lost the {toy}.\n\n"
    for name, toy in zip(NAMES, TOYS, strict=True)
)
QUESTIONS = [
    f"Story: {name} had a blue {toy}. {name} lost it at school.\nQuestion: What did {name} lose?\nAnswer:"
    for name, toy in (("Rose", "pen"), ("Leo", "car"), ("Ella", "bag"), ("Fred", "fish"), ("Nina", "coat"))
]
PARAMS = SamplingParams(temperature=0, max_tokens=4)

# In float32: in bfloat16, what is computed in other pieces may be rounded otherwise.
llm = LLM(dtype="float32", max_model_len=1024, num_kv_blocks=128)
llm.generate("warm up", PARAMS, use_tqdm=False)


def ask(question: str) -> RequestOutput:
    return llm.generate(EXAMPLES + question, PARAMS, use_tqdm=False)[0]


def ttft(output: RequestOutput) -> float:
    """In milliseconds."""
    return 1e3 * output.metrics.ttft


cold = []
for question in QUESTIONS:
    llm.reset_prefix_cache()
    cold.append(ask(question))
llm.reset_prefix_cache()
ask("Story:")  # somebody has asked something behind these examples
before = llm.engine.stats()
warm = [ask(question) for question in QUESTIONS]
after = llm.engine.stats()

table = Table(title="the same prompts, with the cache reset before each and then without")
for column in ("about", "prompt tokens", "cached, cold", "cached, warm", "TTFT cold (ms)", "TTFT warm (ms)"):
    table.add_column(column, justify="left" if column == "about" else "right")
for question, first, second in zip(QUESTIONS, cold, warm, strict=True):
    counts = (len(second.prompt_token_ids), first.num_cached_tokens, second.num_cached_tokens)
    table.add_row(question.split()[1], *map(str, counts), f"{ttft(first):.1f}", f"{ttft(second):.1f}")
Console().print(table)

queries = after.prefix_cache_queries - before.prefix_cache_queries
hits = after.prefix_cache_hits - before.prefix_cache_hits
print(f"warm: {hits} of {queries} prompt tokens were found, hit rate {hits / queries:.0%}")
slow, fast = median(map(ttft, cold)), median(map(ttft, warm))
print(f"median TTFT: cold {slow:.1f} ms, warm {fast:.1f} ms, {slow / fast:.1f}x")
print(f"the same answers: {[o.outputs[0].token_ids for o in cold] == [o.outputs[0].token_ids for o in warm]}")
