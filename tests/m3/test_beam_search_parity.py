"""Beam search against its oracle, Hugging Face's `num_beams`: the same sequences with the same scores."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from folovllm.sample.beam_search import BeamSearch, Hypothesis
from tests.helpers import make_hf_model
from tests.m3.beam_support import Logprobs, decode

PROMPTS = ([5], [3, 9, 17, 4], [21, 7, 7, 2, 30, 11, 1])
MAX_NEW_TOKENS = 10
PAD = 31  # not an EOS: padding must not look like an ending


class TinyModel:
    """A random model of 32 tokens, where an EOS is drawn often; a prefix is computed once for all tests."""

    def __init__(self) -> None:
        self.hf: Any = make_hf_model(
            "qwen3", seed=1, vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=8
        )
        self.hf.generation_config.pad_token_id = PAD
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}

    @torch.inference_mode()
    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        key = tuple(token_ids)
        if key not in self._rows:
            self._rows[key] = self.hf(torch.tensor([token_ids])).logits[0, -1].log_softmax(dim=-1)
        return self._rows[key]

    def after(self, prompt: list[int]) -> Logprobs:
        return lambda token_ids: self.logprobs(prompt + token_ids)

    @torch.inference_mode()
    def generate(self, prompt: list[int], width: int, eos: list[int], **settings: Any) -> tuple[list, list]:
        """Hugging Face's sequences (output only, padded) and scores."""
        ids = torch.tensor([prompt])
        out = self.hf.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=width,
            eos_token_id=eos or None,
            return_dict_in_generate=True,
            output_scores=True,
            **{"max_new_tokens": MAX_NEW_TOKENS, "num_return_sequences": width, **settings},
        )
        return out.sequences[:, len(prompt) :].tolist(), out.sequences_scores.tolist()


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return TinyModel()


def assert_same(hypotheses: list[Hypothesis], sequences: list[list[int]], scores: list[float]) -> None:
    padded = [h.token_ids + [PAD] * (len(sequences[0]) - len(h.token_ids)) for h in hypotheses]
    assert padded == sequences
    assert [h.normalised_score for h in hypotheses] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_same_sequences_and_scores_as_hugging_face(model: TinyModel, width: int, early_stopping: Any) -> None:
    eos = [2, 19]
    lengths: set[int] = set()
    by_eos: set[bool] = set()
    for prompt, length_penalty in itertools.product(PROMPTS, (1.0, 0.0, 2.0, -1.0)):
        search = BeamSearch(width, frozenset(eos), MAX_NEW_TOKENS, length_penalty, early_stopping)
        decode(search, model.after(prompt))
        settings = {"length_penalty": length_penalty, "early_stopping": early_stopping}
        assert_same(search.best(width), *model.generate(prompt, width, eos, **settings))
        lengths |= {len(h.token_ids) for h in search.best(width)}
        by_eos |= {h.stop_token_id is not None for h in search.best(width)}
    assert len(lengths) >= 4, "hypotheses of several lengths were compared"
    assert by_eos == {True, False}, "some ended by EOS, some by length"


@pytest.mark.parametrize("eos", [[], [19], [2, 7, 19, 28]], ids=["none", "one", "four"])
def test_any_number_of_eos_ids(model: TinyModel, eos: list[int]) -> None:
    for prompt in PROMPTS:
        search = BeamSearch(4, frozenset(eos), MAX_NEW_TOKENS)
        decode(search, model.after(prompt))
        assert_same(search.best(4), *model.generate(prompt, 4, eos))


@pytest.mark.parametrize("max_new_tokens", [1, 2])
def test_few_tokens_to_make(model: TinyModel, max_new_tokens: int) -> None:
    search = BeamSearch(4, frozenset([2, 19]), max_new_tokens)
    decode(search, model.after(PROMPTS[0]))
    assert_same(search.best(4), *model.generate(PROMPTS[0], 4, [2, 19], max_new_tokens=max_new_tokens))


def test_fewer_returned_than_searched(model: TinyModel) -> None:
    search = BeamSearch(4, frozenset([2, 19]), MAX_NEW_TOKENS)
    decode(search, model.after(PROMPTS[1]))
    assert_same(search.best(2), *model.generate(PROMPTS[1], 4, [2, 19], num_return_sequences=2))


def test_masked_log_probabilities(model: TinyModel) -> None:
    """No EOS among the first four tokens, and only ten tokens are allowed at all."""
    prompt, eos, allowed = PROMPTS[2], [2, 19], [2, 3, 5, 8, 11, 13, 19, 21, 27, 30]
    forbidden = [token for token in range(32) if token not in allowed]

    def masked(token_ids: list[int]) -> torch.Tensor:
        row = model.logprobs(prompt + token_ids).clone()
        row[forbidden] = -torch.inf
        if len(token_ids) < 4:
            row[eos] = -torch.inf
        return row

    search = BeamSearch(4, frozenset(eos), MAX_NEW_TOKENS)
    decode(search, masked)
    assert_same(search.best(4), *model.generate(prompt, 4, eos, suppress_tokens=forbidden, min_new_tokens=4))
    assert min(len(h.token_ids) for h in search.best(4)) >= 5
    assert any(h.stop_token_id is not None for h in search.best(4))
