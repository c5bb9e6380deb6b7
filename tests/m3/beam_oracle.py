"""Hugging Face's beam search on the same weights: sequences and scores, each search asked for once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.outputs import RequestOutput
from tests.helpers import make_hf_model

EOS = [4, 23]
PAD = 31


class BeamOracle:
    """A random model of 32 tokens, where an EOS is drawn often."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hf: Any = make_hf_model(
            "qwen3",
            seed=1,
            vocab_size=32,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            head_dim=8,
            max_position_embeddings=64,
        )
        self.hf.save_pretrained(folder)
        self.hf.generation_config.pad_token_id = PAD
        self._known: dict[str, tuple[list[list[int]], list[float]]] = {}

    def make_llm(self, **kwargs: Any) -> LLM:
        return LLM(str(self.folder), skip_tokenizer_init=True, dtype="float32", device="cpu", **kwargs)

    @torch.inference_mode()
    def generate(self, prompt: list[int], n: int, width: int, **settings: Any) -> tuple[list[list[int]], list[float]]:
        """Sequences (output only, without padding) and scores, best first. `settings` are Hugging Face's."""
        asked = {"eos_token_id": EOS, "num_beams": width, "num_return_sequences": n, **settings}
        key = repr((prompt, sorted(asked.items())))
        if key not in self._known:
            ids = torch.tensor([prompt])
            flags = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}
            out = self.hf.generate(ids, attention_mask=torch.ones_like(ids), **flags, **asked)
            ends = asked["eos_token_id"] or []
            sequences = [_until_end(row, ends) for row in out.sequences[:, len(prompt) :].tolist()]
            self._known[key] = sequences, out.sequences_scores.tolist()
        return self._known[key]

    def check(self, output: RequestOutput, params: SamplingParams, **settings: Any) -> None:
        """The same sequences with the same scores; the settings that both sides have are read from `params`."""
        shared = {
            "length_penalty": params.length_penalty,
            "early_stopping": params.early_stopping,
            "max_new_tokens": params.max_tokens,
        }
        width = params.best_of or params.n
        sequences, scores = self.generate(output.prompt_token_ids, params.n, width, **{**shared, **settings})
        assert [completion.token_ids for completion in output.outputs] == sequences
        assert [score_of(completion, params) for completion in output.outputs] == pytest.approx(scores, abs=1e-4)


def score_of(completion: Any, params: SamplingParams) -> float:
    return completion.cumulative_logprob / len(completion.token_ids) ** params.length_penalty


def _until_end(token_ids: list[int], ends: list[int]) -> list[int]:
    """Without the padding behind an EOS."""
    first = next((place for place, token_id in enumerate(token_ids) if token_id in ends), len(token_ids))
    return token_ids[: first + 1]


def beam_params(width: int, n: int | None = None, **kwargs: Any) -> SamplingParams:
    """EOS by stop_token_ids, which the model itself has none of."""
    values = {"max_tokens": 10, "temperature": 0, "stop_token_ids": EOS, **kwargs}
    return SamplingParams(n=n or width, best_of=width, use_beam_search=True, **values)
