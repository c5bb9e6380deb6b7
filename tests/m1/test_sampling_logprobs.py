"""Log-probabilities: raw ones are the model's, processed ones are those that were drawn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from folovllm import SamplingParams
from folovllm.sample.logprobs import gather_logprobs
from tests.m1.sampling_reference import make_row, sample

VOCAB = 700


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)) * 3


def exact(logits: torch.Tensor) -> np.ndarray:
    return log_softmax(logits.double().numpy(), axis=-1)


SHAPED = {"temperature": 0.5, "top_k": 20, "top_p": 0.9, "presence_penalty": 1.5, "logit_bias": {3: 5.0}}


@pytest.mark.parametrize(
    "settings", [{}, SHAPED, {"temperature": 0.0, "min_tokens": 2}], ids=["plain", "shaped", "greedy"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_raw_logprobs_are_those_of_the_models_own_logits(
    logits: torch.Tensor, settings: dict, dtype: torch.dtype
) -> None:
    logits = logits.to(dtype)
    output = sample(logits, [make_row(SamplingParams(logprobs=5, **settings), output=[1], eos=[2])] * 4)
    assert output.logprobs is not None
    for row, expected in enumerate(exact(logits)):
        ids = output.logprobs.token_ids[row]
        assert ids[0] == output.token_ids[row]
        np.testing.assert_allclose(output.logprobs.logprobs[row], expected[ids], atol=1e-5)
        np.testing.assert_allclose(expected[ids[1:]], np.sort(expected)[::-1][:5])
        assert output.logprobs.ranks[row] == 1 + (expected > expected[ids[0]]).sum()


def test_a_greedy_token_has_rank_one_also_among_equals() -> None:
    output = sample(torch.tensor([[0.0, 5.0, 5.0, 1.0]]), [make_row(SamplingParams(temperature=0, logprobs=1))])
    assert output.logprobs is not None
    assert output.logprobs.ranks.tolist() == [1]


def test_logprobs_are_none_when_nobody_asks(logits: torch.Tensor) -> None:
    assert sample(logits, [make_row(SamplingParams())] * 4).logprobs is None


def test_zero_logprobs_are_those_of_the_token_alone(logits: torch.Tensor) -> None:
    output = sample(logits, [make_row(SamplingParams(logprobs=0))] * 4)
    assert output.logprobs is not None
    assert output.logprobs.token_ids.tolist() == [[token_id] for token_id in output.token_ids.tolist()]


def test_the_sampled_logprob_is_there_to_rank_the_best_of_several(logits: torch.Tensor) -> None:
    output = sample(logits, [make_row(SamplingParams(n=1, best_of=3))] * 4)
    assert output.logprobs is not None
    picked = exact(logits)[range(4), output.token_ids]
    np.testing.assert_allclose(output.logprobs.logprobs[:, 0], picked, atol=1e-5)


def test_processed_logprobs_of_excluded_tokens_are_minus_infinity(logits: torch.Tensor) -> None:
    output = sample(logits[:1], [make_row(SamplingParams(top_k=2, logprobs=4, logprobs_mode="processed"))])
    assert output.logprobs is not None
    assert output.logprobs.logprobs[0, 1:].isinf().tolist() == [False, False, True, True]


def test_processed_logprobs_of_a_greedy_row_include_its_edits_and_no_temperature() -> None:
    params = SamplingParams(temperature=0, logit_bias={1: 3.0}, logprobs=3, logprobs_mode="processed")
    output = sample(torch.tensor([[1.0, 0.0, 2.0]]), [make_row(params)])
    assert output.logprobs is not None
    assert output.logprobs.token_ids.tolist() == [[1, 1, 2, 0]]
    expected = exact(torch.tensor([[3.0, 3.0, 2.0, 1.0]])[:, 1:])[0]
    np.testing.assert_allclose(output.logprobs.logprobs[0, 1:], expected, atol=1e-6)


def test_gather_logprobs_reads_given_tokens_as_prompt_logprobs_need(logits: torch.Tensor) -> None:
    logprobs = logits.log_softmax(dim=-1)
    wanted = torch.tensor([3, 699, 0, 3])
    found = gather_logprobs(logprobs, 2, wanted)
    assert found.token_ids[:, 0].tolist() == wanted.tolist()
    np.testing.assert_allclose(found.logprobs[:, 0], exact(logits)[range(4), wanted], atol=1e-5)
    assert found.token_ids[:, 1].tolist() == logits.argmax(dim=-1).tolist()


def test_gather_logprobs_takes_more_than_the_vocabulary_as_all_of_it(logits: torch.Tensor) -> None:
    assert gather_logprobs(logits.log_softmax(dim=-1), 9999, torch.zeros(4)).token_ids.shape == (4, VOCAB + 1)
