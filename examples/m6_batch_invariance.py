"""One request, alone and among others: how many of its log-probabilities keep their last bit.

Run it: python examples/m6_batch_invariance.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table

from folovllm import LLM, SamplingParams

PROMPT = "Once upon a time there was a little fox who"
OTHERS = ["The sun", "One day, a boy and his dog went to the river and", "Tim had a red ball. He"]
PARAMS = SamplingParams(temperature=0, max_tokens=24, logprobs=0)


def bits(llm: LLM, prompts: list[str]) -> list[str]:
    """The log-probabilities of the first prompt's answer, as hexadecimal numbers: no digit is rounded away."""
    answer = llm.generate(prompts, PARAMS, use_tqdm=False)[0].outputs[0]
    return [answer.logprobs[i][token].logprob.hex() for i, token in enumerate(answer.token_ids)]


table = Table(title="log-probabilities with the same bits as alone")
for column in ("dtype", "batch_invariant", "beside three others", "one token at a time"):
    table.add_column(column)
for dtype in ("float32", "bfloat16"):
    for batch_invariant in (False, True):
        kwargs = {"dtype": dtype, "device": "cpu", "batch_invariant": batch_invariant, "max_model_len": 256}
        llm = LLM(**kwargs, enable_prefix_caching=False)
        chunked = LLM(**kwargs, enable_prefix_caching=False, max_num_batched_tokens=1)
        alone = bits(llm, [PROMPT])
        same = [
            f"{sum(a == b for a, b in zip(alone, other, strict=False))} of {len(alone)}"
            for other in (bits(llm, [PROMPT, *OTHERS]), bits(chunked, [PROMPT]))
        ]
        table.add_row(dtype, str(batch_invariant), *same)
Console().print(table)
