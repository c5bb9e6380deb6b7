"""Beam search: several continuations are kept alive, and the one that is likeliest as a whole wins.

Run it: python examples/m3_beam_search.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams

PROMPT = "Once upon a time"
LENGTH = 24

llm = LLM(block_size=8, dtype="float32")  # in bfloat16, texts that are nearly as likely may change places


def show(label: str, params: SamplingParams) -> None:
    for completion in llm.generate(PROMPT, params, use_tqdm=False)[0].outputs:
        logprob = completion.cumulative_logprob
        print(f"{label:<24} log p = {logprob:7.2f}  {completion.text!r}")


show("greedy", SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logprobs=0))
for width in (2, 4, 8):
    show(f"best of {width} beams", SamplingParams(use_beam_search=True, best_of=width, n=1, max_tokens=LENGTH))
print()
show("all 4 of 4 beams", SamplingParams(use_beam_search=True, n=4, max_tokens=LENGTH))
print()
# A hypothesis that has ended is compared by log p / length ** length_penalty: above 0 longer ones gain by it.
for penalty in (-2.0, 1.0, 3.0):
    params = SamplingParams(use_beam_search=True, best_of=4, n=1, max_tokens=100, length_penalty=penalty)
    show(f"length_penalty {penalty}", params)
