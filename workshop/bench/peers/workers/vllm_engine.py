"""vLLM's LLMEngine, step by step: the clock is around each step, as it is around ours. vLLM: v1/engine/llm_engine.py"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

NEEDS = ("vllm",)


class Engine:
    """`settings` are the keywords of vLLM's LLM."""

    package, attribute = "vllm", "llm_engine"

    def __init__(self, **settings: Any) -> None:
        self.module: Any = import_module(self.package)
        self.version: str = self.module.__version__
        self.engine = getattr(self.module.LLM(skip_tokenizer_init=True, **settings), self.attribute)
        self._runs = 0

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> dict[str, list[Any]]:
        self._runs += 1
        names = [f"run{self._runs}-{number}" for number in range(len(prompts))]
        for name, prompt, count in zip(names, prompts, num_tokens):  # noqa: B905  nothing newer than its Python
            params = self.module.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
            self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        tokens: dict[str, list[int]] = {}
        steps = []
        while self.engine.has_unfinished_requests():
            start = time.perf_counter()
            outputs = self.engine.step()
            seconds = time.perf_counter() - start
            before = sum(map(len, tokens.values()))
            prefill = not outputs or any(output.request_id not in tokens for output in outputs)
            tokens.update({output.request_id: list(output.outputs[0].token_ids) for output in outputs})
            steps.append((seconds, sum(map(len, tokens.values())) - before, prefill))
        return {"steps": steps, "tokens": [tokens[name] for name in names]}
