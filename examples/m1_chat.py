"""A conversation of two turns. The model has no memory: the whole history goes in each time.

Run it: python examples/m1_chat.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams

llm = LLM()
params = SamplingParams(temperature=0.0, max_tokens=96)

messages: list[dict[str, str]] = []
for question in ("What is a KV cache?", "什么是前缀缓存？"):
    messages.append({"role": "user", "content": question})
    output = llm.chat(messages, params, use_tqdm=False)[0]
    answer = output.outputs[0].text
    messages.append({"role": "assistant", "content": answer})
    num_in, num_out = len(output.prompt_token_ids), len(output.outputs[0].token_ids)
    print(f"> {question}\n{answer}\n  ({num_in} tokens in, {num_out} out)")

# What the model really read in the second turn: the chat template has written both turns into one text.
print(f"\nthe second prompt:\n{output.prompt}")
