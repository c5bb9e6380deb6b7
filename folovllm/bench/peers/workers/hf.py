"""Hugging Face's generate() as a peer, with a streamer that notes when tokens arrive. vLLM: none"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from folovllm.bench.contestant import Run, Step
from folovllm.bench.peers.setup import PeerSetup


class HuggingFace:
    """transformers' generate(), `batch_size` prompts at a time.

    A batch is static: shorter prompts are padded on the left, and it runs until its longest output is done. Tokens
    that were not asked for are not counted.
    """

    name = "hf"

    def __init__(self, hf_model: Any, batch_size: int = 1) -> None:
        self.model, self.batch_size = hf_model, batch_size

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        return self.run_mixed(prompts, [num_tokens] * len(prompts))

    def run_mixed(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        run = Run()
        for at in range(0, len(prompts), self.batch_size):
            batch = slice(at, at + self.batch_size)
            run += self._generate(prompts[batch], num_tokens[batch])
        return run

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        from transformers import GenerationConfig

        steps, width = max(num_tokens), max(len(prompt) for prompt in prompts)
        config = GenerationConfig(do_sample=False, max_new_tokens=steps, pad_token_id=0)
        padded = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self.model.device
        clock = _Clock()
        self.model.generate(
            torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=config,
            streamer=clock,
        )
        gaps = [later - earlier for earlier, later in pairwise(clock.times)]
        if len(gaps) != steps:
            raise RuntimeError(f"generate() gave {len(gaps)} tokens instead of {steps}")
        return Run(Step(gap, sum(n > number for n in num_tokens), number == 0) for number, gap in enumerate(gaps))


class _Clock:
    """A streamer, as generate() knows them: put() gets the prompt's ids and then each step's."""

    def __init__(self) -> None:
        self.times: list[float] = [time.perf_counter()]
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self.times.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        pass


def batch_sizes(setup: PeerSetup) -> list[int]:
    """One prompt at a time, and as many as were asked for."""
    return sorted({1, min(setup.batch_size, setup.num_requests)})
