"""Hugging Face's model on the same weights: what it says greedily, and how likely it finds a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from folovllm import LLM
from folovllm.outputs import RequestOutput
from tests.helpers import hf_greedy, make_hf_model

LONGEST = 128


class Oracle:
    def __init__(self, folder: Path, kind: str = "qwen3", **over: Any) -> None:
        self.folder = folder
        self.hf: Any = make_hf_model(kind, **{"max_position_embeddings": LONGEST, **over})
        self.hf.save_pretrained(folder)
        self._greedy: dict[tuple[int, ...], list[int]] = {}

    def make_llm(self, **kwargs: Any) -> LLM:
        return LLM(str(self.folder), skip_tokenizer_init=True, dtype="float32", device="cpu", **kwargs)

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Asked once per prompt: without an EOS, a shorter answer is the beginning of a longer one."""
        known = self._greedy.get(tuple(prompt), [])
        if len(known) < num_tokens:
            known = self._greedy[tuple(prompt)] = hf_greedy(self.hf, prompt, max(num_tokens, 50))
        return known[:num_tokens]

    @torch.inference_mode()
    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """[len(token_ids), vocab] float64: row i is about what follows token i."""
        return self.hf(torch.tensor([token_ids])).logits[0].double().log_softmax(-1)

    def assert_logprobs(self, output: RequestOutput, tolerance: float = 2e-4) -> None:
        """Every log-probability in `output` is what Hugging Face's model says there."""
        for completion in output.outputs:
            tokens = output.prompt_token_ids + completion.token_ids
            rows = self.logprobs(tokens)
            entries = [*(output.prompt_logprobs or [None] * len(output.prompt_token_ids)), *(completion.logprobs or [])]
            assert len(entries) == len(tokens)
            for position, entry in enumerate(entries):
                if entry is not None:
                    assert tokens[position] in entry
                    for token_id, logprob in entry.items():
                        assert abs(logprob.logprob - float(rows[position - 1, token_id])) < tolerance
