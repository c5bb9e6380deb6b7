"""A chat of several turns: each sends the whole history again, and finds nearly all of it computed.

Run it: python examples/m6_chat_turns.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table

from folovllm import LLM, SamplingParams

QUESTIONS = ["What is a KV cache?", "什么是前缀缓存？", "What is paged attention?", "Tell me a story.", "谢谢！"]
PARAMS = SamplingParams(temperature=0, max_tokens=48)

table = Table(title="prompt tokens of each turn, of 16 to a block")
for column in ("turn", "asked", "prompt", "cached", "computed", "answer"):
    table.add_column(column, justify="left" if column == "asked" else "right")


def chat(caching: bool) -> tuple[list[list[int]], list[int], list[int]]:
    """All turns. Returns the answers, and each turn's prompt tokens and how many of them were cached."""
    # In float32: in bfloat16, what is computed in other pieces may be rounded otherwise.
    llm = LLM(dtype="float32", max_model_len=1024, num_kv_blocks=128, enable_prefix_caching=caching)
    messages: list[dict[str, str]] = []
    answers, lengths, cached = [], [], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        output = llm.chat(messages, PARAMS, use_tqdm=False)[0]
        messages.append({"role": "assistant", "content": output.outputs[0].text})
        answers.append(output.outputs[0].token_ids)
        lengths.append(len(output.prompt_token_ids))
        cached.append(output.num_cached_tokens)
    return answers, lengths, cached


answers, lengths, cached = chat(caching=True)
for turn, (question, answer, length, found) in enumerate(zip(QUESTIONS, answers, lengths, cached, strict=True), 1):
    table.add_row(str(turn), question, str(length), str(found), str(length - found), str(len(answer)))
Console().print(table)
print(f"computed {sum(lengths) - sum(cached)} of {sum(lengths)} prompt tokens")
print(f"the same answers without a cache: {answers == chat(caching=False)[0]}")
