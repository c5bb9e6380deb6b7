"""A head that reads the model's hidden states, beside a draft model: tokens a step, and who is right at which place.

Run it: python examples/m8_eagle.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams
from folovllm.core.draft_length import DraftLength

GUESSES = 4
PARAMS = SamplingParams(temperature=0, max_tokens=80)
STORIES = ["Once upon a time", "One day a small dog", "There was a girl who", "从前", "有一天，小猫", "小明"]
QUESTIONS = ["What is a KV cache?", "What is paged attention?", "什么是前缀缓存？", "什么是投机解码？"]
CHATS = [[{"role": "user", "content": question}] for question in QUESTIONS]


def engine(method: str | None) -> LLM:
    config = None if method is None else {"method": method, "num_speculative_tokens": GUESSES}
    llm = LLM(dtype="float32", device="cpu", speculative_config=config)
    if method is not None:  # always so many, whatever a step costs on this machine
        llm.engine.core.scheduler.drafts.length = DraftLength(GUESSES, costs=None)
    return llm


def answers(llm: LLM) -> list[list[list[int]]]:
    texts = (llm.generate(STORIES, PARAMS, use_tqdm=False), llm.chat(CHATS, PARAMS, use_tqdm=False))
    return [[output.outputs[0].token_ids for output in outputs] for outputs in texts]


expected = answers(engine(None))
for method in ("draft_model", "eagle"):
    llm = engine(method)
    drafts = llm.engine.core.scheduler.drafts
    same = answers(llm) == expected
    kept = " ".join(f"{count / drafts.num_drafts:.2f}" for count in drafts.num_accepted_per_pos)
    gain = 1 + sum(drafts.num_accepted_per_pos) / drafts.num_drafts
    print(f"{method + ':':<12} a step brings {gain:.2f} tokens; guess 1 to {GUESSES} kept {kept}; same tokens: {same}")
