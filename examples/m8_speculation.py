"""Tokens a step with prompt lookup: a new story, the same story told again, a question asked again. No token changes.

Run it: python examples/m8_speculation.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams
from folovllm.core.draft_length import DraftLength

GUESSES = 4
PARAMS = SamplingParams(temperature=0, max_tokens=80)
BEGINNING = "Once upon a time"
QUESTION = {"role": "user", "content": "What is a KV cache?"}

plain = LLM(dtype="float32", device="cpu")
guessing = LLM(
    dtype="float32",
    device="cpu",
    speculative_config={"method": "ngram", "num_speculative_tokens": GUESSES},
)
# Always so many: by itself the engine takes fewer where its steps turn out to be dear on this machine.
guessing.engine.core.scheduler.draft_length = DraftLength(GUESSES, costs=None)

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
    before = guessing.engine.stats().steps
    tokens = write(guessing)[0].outputs[0].token_ids
    steps = guessing.engine.stats().steps - before
    same &= tokens == write(plain)[0].outputs[0].token_ids
    print(f"{name + ':':<17} {len(tokens)} tokens in {steps} steps, {len(tokens) / steps:.2f} a step")
print(f"the same tokens as without guesses: {same}")
