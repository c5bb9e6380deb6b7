"""Hugging Face's own model on the same folder: what every answer here is compared with."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Oracle:
    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._known: dict[tuple[int, ...], list[int]] = {}

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text)["input_ids"]

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """Until EOS, which is kept. What was computed once is not computed again."""
        known = self._known.get((*prompt, max_tokens))
        if known is None:
            known = self._known[*prompt, max_tokens] = self._generate(prompt, max_new_tokens=max_tokens).sequences[0]
        return known

    def beams(self, prompt: list[int], width: int, n: int, max_tokens: int) -> tuple[list[list[int]], list[float]]:
        """Sequences without padding, and their scores, best first."""
        out = self._generate(prompt, max_new_tokens=max_tokens, num_beams=width, num_return_sequences=n)
        return out.sequences, out.sequences_scores.tolist()

    @torch.inference_mode()
    def logprobs(self, prompt: list[int], output: list[int]) -> torch.Tensor:
        """[len(output), vocab]: the distribution that each token of the output was taken from."""
        logits = self.model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        return logits.double().log_softmax(-1)

    @torch.inference_mode()
    def _generate(self, prompt: list[int], **settings: Any) -> Any:
        ids = torch.tensor([prompt])
        flags = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), **flags, **settings)
        end = self.model.generation_config.eos_token_id
        rows = out.sequences[:, len(prompt) :].tolist()
        out.sequences = [row[: row.index(end) + 1] if end in row else row for row in rows]
        return out
