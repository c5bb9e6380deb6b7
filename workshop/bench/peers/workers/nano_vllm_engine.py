"""nano-vLLM's engine, step by step. It has no greedy decoding: the smallest temperature that it takes comes close.

vLLM: none
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

NEEDS = ("nanovllm",)
COLDEST = 1e-9  # it refuses 1e-10 and less


class Engine:
    """The checkpoint's own dtype; CUDA graphs on, as its users have them."""

    def __init__(self, model: str, max_model_len: int, max_num_seqs: int) -> None:
        self.nano: Any = import_module("nanovllm")
        self.version: str = getattr(self.nano, "__version__", "unknown")
        self.llm = self.nano.LLM(model, max_model_len=max_model_len, max_num_seqs=max_num_seqs)

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> dict[str, list[Any]]:
        for prompt, count in zip(prompts, num_tokens):  # noqa: B905  any Python 3
            params = self.nano.SamplingParams(temperature=COLDEST, max_tokens=count, ignore_eos=True)
            self.llm.add_request(prompt, params)
        finished: dict[int, list[int]] = {}
        steps: list[Any] = []
        before = 0
        while not self.llm.is_finished():
            start = time.perf_counter()
            outputs, counted = self.llm.step()
            seconds = time.perf_counter() - start
            finished.update({number: list(tokens) for number, tokens in outputs})
            now = self._unfinished_tokens() + sum(map(len, finished.values()))
            # It counts a prefill in tokens of the prompts, and a decode in sequences with a minus.
            steps.append((seconds, now - before, counted > 0))
            before = now
        # They are numbered in the order in which they came.
        return {"steps": steps, "tokens": [finished[number] for number in sorted(finished)]}

    def _unfinished_tokens(self) -> int:
        scheduler = self.llm.scheduler
        return sum(seq.num_completion_tokens for seq in [*scheduler.running, *scheduler.waiting])
