"""What is drawn by way of a draft follows the target's distribution: for each filter, edit, and run of drafts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from folovllm import SamplingParams
from folovllm.sample import rejection
from folovllm.sample.draw import draw_inverse_cdf, uniforms
from folovllm.sample.filters import Candidates
from folovllm.sample.rejection import accept_or_replace
from tests.m1.sampling_reference import CPU, FILTERS, assert_fits, distribution, distribution_of, make_row

DRAWS = 20_000
VOCAB = 40
EDITS = {
    "bias": {"logit_bias": {3: 2.0, 5: -4.0}},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7, "top_k": 9},
    "repetition": {"repetition_penalty": 1.4, "top_p": 0.85},
    "all edits": {
        "logit_bias": {1: 1.0}, "presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.2,
        "temperature": 1.3, "min_p": 0.05,
    },
}  # fmt: skip
PROMPT, OUTPUT = [1, 2, 3], [3, 4, 4, 7]


def normal_logits(seed: int, size: int = VOCAB) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 1.5


def edited(logits: Tensor, params: dict) -> list[float]:
    """By the definitions: repetition over prompt and output, presence and frequency over the output."""
    out = logits.tolist()
    for token, bias in params.get("logit_bias", {}).items():
        out[token] += bias
    for token in {*PROMPT, *OUTPUT}:
        penalty = params.get("repetition_penalty", 1.0)
        out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
    for token in OUTPUT:
        out[token] -= params.get("frequency_penalty", 0.0)
    for token in set(OUTPUT):
        out[token] -= params.get("presence_penalty", 0.0)
    return out


def draw(probs: Tensor, count: int) -> Tensor:
    return draw_inverse_cdf(Candidates(probs.expand(count, -1)), uniforms([None] * count, CPU))


def counts_of(target: Tensor, draft: Tensor, count: int = DRAWS) -> np.ndarray:
    torch.manual_seed(1234)
    drafted = draw(draft, count)
    _, tokens = accept_or_replace(target.expand(count, -1), draft.expand(count, -1), drafted, [None] * count)
    return np.bincount(tokens.numpy(), minlength=len(target))


@pytest.mark.parametrize("filters_the_draft", [True, False])
@pytest.mark.parametrize("name", [*FILTERS, *EDITS])
def test_a_token_follows_the_targets_distribution(name: str, filters_the_draft: bool) -> None:
    options = {**FILTERS, **EDITS}[name]
    params = SamplingParams(**options, logprobs=VOCAB, logprobs_mode="processed")
    row = make_row(params, PROMPT, OUTPUT)
    logits, of_draft = normal_logits(0), normal_logits(0) + normal_logits(1) / 2
    target = torch.from_numpy(distribution_of(logits, row))
    draft = torch.from_numpy(distribution_of(of_draft, row)) if filters_the_draft else of_draft.double().softmax(-1)
    filters = {key: value for key, value in options.items() if key in ("temperature", "top_k", "top_p", "min_p")}
    assert_fits(counts_of(target, draft), distribution(edited(logits, options), **filters))


@pytest.mark.parametrize("vocab_size", [4, 5000])  # the wide one is searched in two levels
def test_a_worthless_draft_changes_nothing(vocab_size: int) -> None:
    target = torch.zeros(vocab_size).index_fill_(0, torch.tensor([0, 2]), 0.5)
    draft = torch.zeros(vocab_size).index_fill_(0, torch.tensor([1, 3]), 0.5)
    counts = counts_of(target, draft, 4000)
    assert_fits(counts, target.numpy())


def test_a_draft_that_is_the_target_is_always_kept() -> None:
    target = normal_logits(0).softmax(-1)
    for draft in (target, target * 1.01):  # one that is larger everywhere, as rounding can make it by less
        drafted = draw(draft, DRAWS)
        accepted, tokens = accept_or_replace(target.expand(DRAWS, -1), draft.expand(DRAWS, -1), drafted, [None] * DRAWS)
        assert accepted.all()
        assert tokens.equal(drafted)


def test_a_refused_token_is_replaced_by_another() -> None:
    target, draft = normal_logits(0).softmax(-1), normal_logits(1).softmax(-1)
    drafted = draw(draft, DRAWS)
    accepted, tokens = accept_or_replace(target.expand(DRAWS, -1), draft.expand(DRAWS, -1), drafted, [None] * DRAWS)
    assert accepted.equal(tokens == drafted)
    overlap = torch.minimum(target, draft).sum().item()  # how often a draft is kept
    assert abs(accepted.float().mean().item() - overlap) < 0.02  # five standard deviations


def test_a_greedy_target_keeps_its_own_token_alone() -> None:
    target = torch.eye(3)[[1, 1]]
    draft = torch.tensor([[0.2, 0.3, 0.5]]).expand(2, -1)
    accepted, tokens = accept_or_replace(target, draft, torch.tensor([1, 2]), [None, None])
    assert accepted.tolist() == [True, False]
    assert tokens.tolist() == [1, 1]


def test_a_seeded_row_draws_the_same_in_any_company_and_takes_one_number() -> None:
    target, draft = normal_logits(0).softmax(-1).expand(9, -1), normal_logits(1).softmax(-1).expand(9, -1)
    drafted = draw(draft[0], 9)
    alone, together = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    _, mine = accept_or_replace(target[:1], draft[:1], drafted[:1], [alone])
    _, tokens = accept_or_replace(target, draft, drafted, [together, *[None] * 8])
    assert mine[0] == tokens[0]
    plain = torch.Generator().manual_seed(7)
    torch.rand((), dtype=torch.float64, generator=plain)
    assert torch.equal(alone.get_state(), plain.get_state())


@pytest.mark.parametrize("seed", range(8))
def test_without_chance_all_numbers_together_give_the_target(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drafted token with each of 4,000 numbers, evenly laid out: the shares are exact to the grid's width."""
    size, grid = 7, 4000
    target, draft = (normal_logits(seed * 2 + one, size).double().softmax(-1) for one in (0, 1))
    even = ((torch.arange(grid, dtype=torch.float64) + 0.5) / grid).repeat(size).unsqueeze(-1)
    monkeypatch.setattr(rejection, "uniforms", lambda generators, device: even)
    drafted = torch.arange(size).repeat_interleave(grid)
    rows = size * grid
    _, tokens = accept_or_replace(target.expand(rows, -1), draft.expand(rows, -1), drafted, [None] * rows)
    shares = torch.bincount(tokens, draft[drafted] / grid, minlength=size)
    np.testing.assert_allclose(shares, target, atol=size / grid)


# A vocabulary of 5 where the next token depends on the last one: row i of each is what follows token i.
SIZE = 5
TARGET = torch.stack([normal_logits(10 + token, SIZE) for token in range(SIZE)]).double().softmax(-1)
DRAFT = torch.stack([normal_logits(20 + token, SIZE) for token in range(SIZE)]).double().softmax(-1)
FIRST_TWO = (TARGET[0].unsqueeze(-1) * TARGET).flatten().numpy()  # exact, of (first, second) after token 0


def first_two(k: int, count: int = DRAWS) -> np.ndarray:
    """Steps of k drafts, then a token more where all are kept, until each of `count` sequences has two tokens."""
    torch.manual_seed(1234)
    tokens = torch.zeros(count, 1, dtype=torch.int64)
    done = torch.zeros(0, 2, dtype=torch.int64)
    while len(tokens):
        last = tokens[:, -1]
        drafts = []
        for _ in range(k):
            drafts.append(draw_rows(DRAFT[drafts[-1] if drafts else last]))
        going = torch.ones(len(tokens), dtype=torch.bool)
        gained = torch.ones(len(tokens), dtype=torch.int64)
        run = torch.zeros(len(tokens), k + 1, dtype=torch.int64)
        for place, drafted in enumerate(drafts):
            kept, run[:, place] = accept_or_replace(TARGET[last], DRAFT[last], drafted, [None] * len(last))
            going &= kept
            gained += going
            last = drafted
        run[:, k] = draw_rows(TARGET[last])
        tokens = torch.cat([tokens, run], dim=1)
        lengths = tokens.shape[1] - (k + 1) + gained
        is_done = lengths > 2
        done = torch.cat([done, tokens[is_done, 1:3]])
        tokens = tokens[~is_done][:, :2]  # of these, one token was gained
    return np.bincount((done[:, 0] * SIZE + done[:, 1]).numpy(), minlength=SIZE * SIZE)


def draw_rows(probs: Tensor) -> Tensor:
    return draw_inverse_cdf(Candidates(probs), uniforms([None] * len(probs), CPU))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_two_tokens_follow_their_joint_distribution_whatever_the_length_of_the_drafts(k: int) -> None:
    assert_fits(first_two(k), FIRST_TWO)
