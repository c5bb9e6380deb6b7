"""Complete a few prompts at once, each with its own sampling parameters.

Run it: python examples/m1_generate.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams

llm = LLM()  # the model that ships here; LLM("Qwen/Qwen3-0.6B") or LLM("/a/local/folder") works the same

prompts = ["Once upon a time", "从前", "One morning"]
params = [
    SamplingParams(temperature=0.0, max_tokens=48),  # greedy: the same text every time
    SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=48),  # varied, and yet repeatable: it has a seed
    SamplingParams(temperature=0.8, n=2, seed=7, max_tokens=48, stop=["."]),  # two texts of one sentence each
]

# The outputs come in the order of the prompts; each has as many completions as its n.
for output in llm.generate(prompts, params, use_tqdm=False):
    print(f"\n{output.prompt!r}: {len(output.prompt_token_ids)} prompt tokens")
    for completion in output.outputs:
        print(f"  [{completion.index}] {completion.text.strip()!r}")
        print(f"      {len(completion.token_ids)} tokens, finish_reason {completion.finish_reason!r}")
    metrics = output.metrics
    if metrics and metrics.ttft and metrics.tpot:
        print(f"  first token after {metrics.ttft * 1e3:.0f} ms, then {metrics.tpot * 1e3:.1f} ms per token")
