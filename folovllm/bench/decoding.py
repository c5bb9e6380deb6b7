"""A full batch, of which every sequence decodes: what decode.py and step.py measure steps of. vLLM: none"""

from __future__ import annotations

import gc
import time

from folovllm.bench.workload import random_prompts
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams

WARM_UP_STEPS = 5


class DecodingBatch:
    """Greedy sequences of `prompt_len` random tokens, prefilled and some steps on; end() takes them out again."""

    def __init__(self, engine: LLMEngine, count: int, prompt_len: int, vocab_size: int, seed: int) -> None:
        self.engine, self.names = engine, [f"batch{count}-{number}" for number in range(count)]
        self.lengths: dict[str, int] = {}
        """Tokens that each has got."""
        room = engine.max_model_len - prompt_len
        params = SamplingParams(temperature=0, max_tokens=room, ignore_eos=True)
        prompts = random_prompts(count, prompt_len, vocab_size, seed=seed + count)
        for name, prompt in zip(self.names, prompts, strict=True):
            engine.add_request(name, prompt, params)
        gc.collect()  # here, and not in the middle of a step
        while len(self.lengths) < count:
            self.step()
        for _ in range(WARM_UP_STEPS):
            self.step()

    def step(self) -> float:
        """What it took, in seconds."""
        start = time.perf_counter()
        outputs = self.engine.step()
        seconds = time.perf_counter() - start
        self.lengths |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        return seconds

    def end(self) -> None:
        for name in self.names:
            self.engine.abort_request(name)
        while self.engine.has_unfinished_requests():
            self.engine.step()
