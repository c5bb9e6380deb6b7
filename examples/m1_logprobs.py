"""How sure was the model? Log-probabilities of what it wrote, and of a prompt that somebody else wrote.

Run it: python examples/m1_logprobs.py
"""

from __future__ import annotations

import math

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams

llm = LLM()

# logprobs=3: at each step the token itself and the three likeliest. They are the model's own, before temperature and
# the filters have changed anything.
question = [{"role": "user", "content": "What is a KV cache?"}]
params = SamplingParams(temperature=0, max_tokens=12, logprobs=3)
completion = llm.chat(question, params, use_tqdm=False)[0].outputs[0]
print("token           p      the likeliest")
for token_id, entry in zip(completion.token_ids, completion.logprobs or [], strict=True):
    ranked = sorted(entry.values(), key=lambda logprob: logprob.rank or 0)[:3]
    others = "  ".join(f"{other.decoded_token!r} {math.exp(other.logprob):.3f}" for other in ranked)
    print(f"{entry[token_id].decoded_token!r:<15} {math.exp(entry[token_id].logprob):.3f}  {others}")
print(f"all of them together: log p = {completion.cumulative_logprob:.3f}\n")

# prompt_logprobs: the same about the prompt, in one forward pass. Perplexity is exp(-mean): how many tokens the model
# hesitated between, on average. Text of the kind it has learnt scores low, a shuffled sentence high.
for text in ("Once upon a time there was a little cat.", "cat a little was time there upon a Once."):
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    output = llm.generate(text, params, use_tqdm=False)[0]
    entries = output.prompt_logprobs or []
    scored = zip(output.prompt_token_ids, entries, strict=True)
    logprobs = [entry[token_id].logprob for token_id, entry in scored if entry is not None]  # the first has none
    print(f"perplexity {math.exp(-sum(logprobs) / len(logprobs)):8.1f}  {text!r}")
