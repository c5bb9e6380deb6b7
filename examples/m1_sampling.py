"""One prompt, many ways to choose the next token: what each field of SamplingParams does to the same story.

Run it: python examples/m1_sampling.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams

llm = LLM()
tokenizer = llm.get_tokenizer()
PROMPT = "Once upon a time"


def show(label: str, **fields: object) -> str:
    params = SamplingParams(max_tokens=40, **fields)  # type: ignore[arg-type]
    text = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text
    print(f"{label:<34} {text.strip()!r}")
    return text


greedy = show("greedy", temperature=0)
show("temperature 0.7", temperature=0.7, seed=1)
show("temperature 0.7, the same seed", temperature=0.7, seed=1)
show("temperature 0.7, another seed", temperature=0.7, seed=2)
show("temperature 2: nearly even dice", temperature=2.0, seed=1)
show("temperature 2, but top_k=2", temperature=2.0, top_k=2, seed=1)
show("temperature 2, but top_p=0.5", temperature=2.0, top_p=0.5, seed=1)
show("temperature 2, but min_p=0.2", temperature=2.0, min_p=0.2, seed=1)
show("greedy, frequency_penalty=2", temperature=0, frequency_penalty=2.0)
show("greedy, repetition_penalty=1.5", temperature=0, repetition_penalty=1.5)

# logit_bias moves single tokens: with -100 the greedy text's first token is out of reach.
first = tokenizer(greedy, add_special_tokens=False)["input_ids"][0]
show(f"greedy, without {tokenizer.decode([first])!r} ", temperature=0, logit_bias={first: -100.0})
show("greedy, stop at the first period", temperature=0, stop=["."])
