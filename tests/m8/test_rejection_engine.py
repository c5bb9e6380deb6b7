"""An engine whose guesses are drawn and kept by rejection sampling says what it would say without them, as often."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from folovllm import LLMEngine, SamplingParams
from folovllm.core.draft_length import DraftLength
from folovllm.request import Sequence
from tests.m1.sampling_reference import assert_fits
from tests.m6.support import caching_engine
from tests.m8.support import Prophet

ALLOWED = [3, 50, 120, 200]
PROMPT = [1, 2, 3, 4]
DRAFT = torch.tensor([0.1, 0.2, 0.3, 0.4])


class Gambler(Prophet):
    """Draws each guess from DRAFT, whatever came before."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__({})
        self.probs = torch.zeros(vocab_size)
        self.probs[ALLOWED] = DRAFT

    def propose_with_probabilities(
        self, seqs: list[Sequence], counts: list[int]
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        tokens = [[ALLOWED[i] for i in torch.multinomial(DRAFT, count, replacement=True)] for count in counts]
        return tokens, [self.probs.expand(count, -1) for count in counts]


def gambling_engine(folder: Any) -> LLMEngine:
    config = {"method": "ngram", "num_speculative_tokens": 2}
    room = {"max_num_seqs": 256, "max_num_batched_tokens": 1024, "num_kv_blocks": 600}  # each sequence has its guesses
    engine = caching_engine(folder, speculative_config=config, **room)
    engine.scheduler.drafts.length = DraftLength(2, None)
    speculation = engine.runner.speculation
    speculation.proposer, speculation.rejects = Gambler(engine.runner.vocab_size), True
    return engine


def said(engine: LLMEngine, params: SamplingParams) -> list[list[int]]:
    engine.add_request("r", PROMPT, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return [completion.token_ids for completion in outputs[0].outputs]


def exact(engine: LLMEngine, temperature: float) -> np.ndarray:
    """Of four tokens, by log-probabilities of prompts that hold the tokens before."""
    shares = np.zeros((4,) * 4)
    heat = partial(SamplingParams, temperature=temperature, allowed_token_ids=ALLOWED, logprobs=4, max_tokens=1)

    def next_shares(prompt: list[int]) -> np.ndarray:
        engine.add_request("e", prompt, heat(logprobs_mode="processed", seed=0))
        (output,) = engine.step()
        told = output.outputs[0].logprobs[0]
        return np.exp([told[token].logprob for token in ALLOWED])

    first = next_shares(PROMPT)
    for i, one in enumerate(ALLOWED):
        second = next_shares([*PROMPT, one])
        for j, two in enumerate(ALLOWED):
            third = next_shares([*PROMPT, one, two])
            for k, three in enumerate(ALLOWED):
                shares[i, j, k] = first[i] * second[j] * third[k] * next_shares([*PROMPT, one, two, three])
    return shares / shares.sum()  # float32's rounding


def joint_counts(engine: LLMEngine, rounds: int = 16) -> np.ndarray:
    params = SamplingParams(n=250, max_tokens=4, temperature=0.7, allowed_token_ids=ALLOWED, ignore_eos=True)
    torch.manual_seed(1234)
    counts = np.zeros((4,) * 4, np.int64)
    for _ in range(rounds):
        for tokens in said(engine, params):
            counts[tuple(ALLOWED.index(token) for token in tokens)] += 1
    return counts.flatten()


def test_four_tokens_have_their_joint_distribution(text_model_folder) -> None:
    engine, expected = gambling_engine(text_model_folder), exact(caching_engine(text_model_folder), 0.7).flatten()
    assert_fits(joint_counts(engine), expected)
    guesses = engine.stats().spec_decode
    assert guesses.num_drafts > 3000
    assert 0 < guesses.num_accepted_tokens < guesses.num_draft_tokens


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5}], ids=str)
def test_greedy_and_seeded_tokens_are_those_without_guesses(text_model_folder, params: dict[str, Any]) -> None:
    params = SamplingParams(**params, max_tokens=12, allowed_token_ids=ALLOWED, ignore_eos=True)
    assert said(gambling_engine(text_model_folder), params) == said(caching_engine(text_model_folder), params)
