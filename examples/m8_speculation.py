"""Tokens a step by two drafts: for a new story, the same story told again, a question asked again. No token changes.

Run it: python examples/m8_speculation.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams
from folovllm.core.draft_length import DraftLength

GUESSES = 4
METHODS = ("ngram", "draft_model")
PARAMS = SamplingParams(temperature=0, max_tokens=80)
BEGINNING = "Once upon a time"
QUESTION = {"role": "user", "content": "What is a KV cache?"}


def engine(method: str | None) -> LLM:
    config = None if method is None else {"method": method, "num_speculative_tokens": GUESSES}
    llm = LLM(dtype="float32", device="cpu", speculative_config=config)
    if method is not None:
        # Always so many: by itself the engine takes fewer where its steps turn out to be dear on this machine.
        llm.engine.core.scheduler.drafts.length = DraftLength(GUESSES, costs=None)
    return llm


plain, guessing = engine(None), {method: engine(method) for method in METHODS}
story = BEGINNING + plain.generate(BEGINNING, PARAMS, use_tqdm=False)[0].outputs[0].text
answer = plain.chat([QUESTION], PARAMS, use_tqdm=False)[0].outputs[0].text
texts = {
    "a new story": lambda llm: llm.generate(BEGINNING, PARAMS, use_tqdm=False),
    "the story again": lambda llm: llm.generate(f"{story}\n\n{BEGINNING}", PARAMS, use_tqdm=False),
    "a question again": lambda llm: llm.chat(
        [QUESTION, {"role": "assistant", "content": answer}, QUESTION], PARAMS, use_tqdm=False
    ),
}
same = True
for name, write in texts.items():
    expected = write(plain)[0].outputs[0].token_ids
    gains = []
    for method, llm in guessing.items():
        before = llm.engine.stats().steps
        tokens = write(llm)[0].outputs[0].token_ids
        same &= tokens == expected
        gains.append(f"{len(tokens) / (llm.engine.stats().steps - before):.2f} with {method}")
    print(f"{name + ':':<17} {len(expected)} tokens, a step brings {', '.join(gains)}")
print(f"the same tokens as without guesses: {same}")
