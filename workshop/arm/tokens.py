"""What the embedded model says in float32, greedy and drawn: token ids, a line an answer. python.sh compares them."""

from __future__ import annotations

from folovllm import LLM, SamplingParams
from folovllm.utils import cpu_kernels

PROMPTS = ["Once upon a time", "The little dog", "Lily went to the park and", "Tom had a red ball. He"]
GREEDY = SamplingParams(temperature=0, max_tokens=32)
DRAWN = SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=32)

if __name__ == "__main__":
    print("without kernels:", cpu_kernels.unavailable_reason(), flush=True)
    llm = LLM(dtype="float32", device="cpu", max_model_len=64)
    for params in (GREEDY, DRAWN):
        for output in llm.generate(PROMPTS, params, use_tqdm=False):
            print(*output.outputs[0].token_ids, flush=True)
