"""Beam search's decisions, on tables small enough to be worked by hand; the edges; and rules for any table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from folovllm.sample.beam_search import BeamSearch, BeamStep, CandidateRow, Hypothesis
from tests.m3.beam_support import Logprobs, decode


def table(probabilities: dict[str, dict[str, float]], tokens: str) -> Logprobs:
    """Log-probabilities by the text so far, for examples that can be worked by hand; what is not named is -inf."""

    def logprobs(token_ids: list[int]) -> torch.Tensor:
        row = probabilities["".join(tokens[t] for t in token_ids)]
        return torch.tensor([row.get(token, 0.0) for token in tokens]).log()

    return logprobs


def texts(hypotheses: list[Hypothesis], tokens: str) -> list[str]:
    return ["".join(tokens[t] for t in hypothesis.token_ids) for hypothesis in hypotheses]


def search_table(
    probabilities: dict[str, dict[str, float]], tokens: str, width: int, length: int, **settings: Any
) -> tuple[BeamSearch, list[BeamStep]]:
    """A whole search over a table whose "." is the EOS: the search and its steps."""
    search = BeamSearch(width, frozenset([tokens.index(".")]), length, **settings)
    return search, decode(search, table(probabilities, tokens))


# -- Worked by hand

# The drawing in the module's docstring, with a third step:
#   aba .175 * .6 = .105   aaa .200 * .5 = .100   aab .060   abb .0525   aa. .040   ab. .0175
DRAWING = {
    "": {"a": 0.5, "b": 0.4, ".": 0.1},
    "a": {"a": 0.4, "b": 0.35, ".": 0.25},
    "b": {"a": 0.1, "b": 0.2, ".": 0.7},
    "aa": {"a": 0.5, "b": 0.3, ".": 0.2},
    "ab": {"a": 0.6, "b": 0.3, ".": 0.1},
}


def test_the_drawing_step_by_step() -> None:
    search, (first, second, third) = search_table(DRAWING, "ab.", width=2, length=3)
    assert [(s.parent, s.token_id) for s in first.survivors] == [(0, 0), (0, 1)]
    assert [math.exp(s.score) for s in first.survivors] == pytest.approx([0.5, 0.4])
    assert first.endings == []  # "." came third: not among the best two
    assert [(s.parent, s.token_id) for s in second.survivors] == [(0, 0), (0, 1)]  # aa, ab
    assert [math.exp(s.score) for s in second.survivors] == pytest.approx([0.2, 0.175])
    assert [(e.parent, e.hypothesis.token_ids, e.kept) for e in second.endings] == [(1, [1, 2], True)]  # b., not a.
    assert third.done
    assert [(e.parent, e.hypothesis.token_ids, e.kept) for e in third.endings] == [
        (1, [0, 1, 0], True),  # aba
        (0, [0, 0, 0], False),  # aaa: -0.768 a token, the pool has better
    ]
    assert texts(search.best(2), "ab.") == ["b.", "aba"]
    assert [h.stop_token_id for h in search.best(2)] == [2, None]
    assert [h.score for h in search.best(2)] == pytest.approx([math.log(0.28), math.log(0.105)])
    assert [h.normalised_score for h in search.best(2)] == pytest.approx([-0.6365, -0.7513], abs=1e-4)


# Step 1: a .5 lives, "." .3 ends, b .2 lives. Step 2: aa .30 lives, "a." .15 ends and fills the pool, ba .08 lives.
PROMISING = {
    "": {"a": 0.5, ".": 0.3, "b": 0.2},
    "a": {"a": 0.6, ".": 0.3, "b": 0.1},
    "b": {"a": 0.4, ".": 0.3, "b": 0.3},
    "aa": {"a": 0.1, ".": 0.8, "b": 0.1},
    "ba": {"a": 0.4, ".": 0.2, "b": 0.4},
}


def test_never_takes_the_length_as_it_is_where_length_costs() -> None:
    """Pool: "." log .3 * 1 = -1.20, "a." log .15 * 2 = -3.79. Times 2 aa's log .3 may enter it, times 9 not."""
    _, steps = search_table(PROMISING, "ab.", width=2, length=9, early_stopping="never", length_penalty=-1.0)
    assert len(steps) == 3


# -- Any table


def random_rows(seed: int, vocab_size: int) -> Logprobs:
    """A row of its own for each prefix, the same whenever it is asked for."""

    def logprobs(token_ids: list[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((seed, *token_ids)) % 2**32)
        return torch.randn(vocab_size, generator=generator).log_softmax(dim=-1)

    return logprobs


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
def test_wide_enough_it_finds_every_output_in_order(length_penalty: float) -> None:
    """3 tokens, one an EOS, at most 4 long: 1 + 2 + 4 + 8 outputs end by EOS and 16 by length, 31 in all."""
    logprobs = random_rows(0, vocab_size=3)
    search = BeamSearch(32, frozenset([0]), 4, length_penalty, early_stopping="never")
    decode(search, logprobs)

    def endings(token_ids: list[int], score: float) -> Iterator[tuple[float, list[int]]]:
        if len(token_ids) == 4 or 0 in token_ids:
            yield score / len(token_ids) ** length_penalty, token_ids
            return
        for token, logprob in enumerate(logprobs(token_ids).tolist()):
            yield from endings([*token_ids, token], score + logprob)

    expected = sorted(endings([], 0.0), reverse=True)
    assert len(expected) == 31
    assert [h.token_ids for h in search.best(32)] == [token_ids for _, token_ids in expected]
    assert [h.normalised_score for h in search.best(32)] == pytest.approx([score for score, _ in expected], abs=1e-5)


@pytest.mark.parametrize("num_eos", [0, 1, 3])
def test_so_many_candidates_are_enough(num_eos: int) -> None:
    """Handing over whole rows of the vocabulary decides nothing differently."""
    for seed in range(10):
        logprobs = random_rows(seed, vocab_size=12)
        narrow, whole = (BeamSearch(4, frozenset(range(num_eos)), 6) for _ in range(2))
        assert [s.survivors for s in decode(narrow, logprobs)] == [s.survivors for s in decode(whole, logprobs, 12)]
        assert [h.token_ids for h in narrow.best(4)] == [h.token_ids for h in whole.best(4)]


def test_scores_are_float32_sums() -> None:
    logprobs = random_rows(3, vocab_size=12)
    search = BeamSearch(4, frozenset([0]), 30, length_penalty=0.0)
    decode(search, logprobs)
    hypothesis = max(search.best(4), key=lambda h: len(h.token_ids))
    total = torch.zeros(())
    for i, token in enumerate(hypothesis.token_ids):
        total = total + logprobs(hypothesis.token_ids[:i])[token]
    assert len(hypothesis.token_ids) > 1
    assert hypothesis.score == total.item()


# -- Edges


def test_masks_that_leave_fewer_tokens_than_beams_give_fewer_beams() -> None:
    """One beam, then two, then four: never one through a masked token."""
    probabilities = {"": {"a": 1.0}, "a": {"a": 0.6, "b": 0.4}} | {t: {"a": 0.7, "b": 0.3} for t in ("aa", "ab")}
    search, steps = search_table(probabilities, "abc.", width=4, length=3)
    assert [len(step.survivors) for step in steps] == [1, 2, 0]
    assert texts(search.best(4), "abc.") == ["aaa", "aba", "aab", "abb"]


def test_a_beam_without_a_possible_token_gives_way() -> None:
    probabilities = {"": {"a": 0.9, "b": 0.1}, "a": {}, "b": {"a": 0.5, "b": 0.5}}
    search, steps = search_table(probabilities, "ab.", width=2, length=2)
    assert [e.parent for e in steps[-1].endings] == [1, 1]
    assert texts(search.best(2), "ab.") == ["ba", "bb"]


def test_where_no_token_is_possible_the_outputs_end_as_they_are() -> None:
    search, steps = search_table({"": {"a": 0.6, "b": 0.4}, "a": {}, "b": {}}, "ab.", width=2, length=9)
    assert len(steps) == 2
    assert texts(search.best(2), "ab.") == ["a", "b"]
    for length_penalty in (1.0, -1.0):
        search, _ = search_table({"": {}}, "ab.", width=2, length=9, length_penalty=length_penalty)
        assert texts(search.best(2), "ab.") == [""]


def test_where_no_token_is_possible_an_ended_output_is_not_joined_by_a_torn_one() -> None:
    search, _ = search_table({"": {"a": 0.6, ".": 0.4}, "a": {}}, "ab.", width=2, length=9)
    assert texts(search.best(2), "ab.") == ["."]


def test_nan_is_no_candidate() -> None:
    step = BeamSearch(2, frozenset(), 5).advance([([0, 1, 2], [math.nan, -1.0, -2.0])])
    assert [s.token_id for s in step.survivors] == [1, 2]


def test_a_vocabulary_smaller_than_the_width() -> None:
    """Two tokens go on from each beam: 2, 4, then 5 of 8 beams live."""
    search = BeamSearch(5, frozenset([0]), 4)
    steps = decode(search, random_rows(1, vocab_size=3))
    assert [len(step.survivors) for step in steps[:3]] == [2, 4, 5]
    assert len(search.best(5)) == 5


def test_of_equal_candidates_the_first_given_lives() -> None:
    search = BeamSearch(2, frozenset(), 5)
    search.advance([([7, 8], [-1.0, -1.0])])
    step = search.advance([([4, 3], [-1.0, -1.0]), ([5, 6], [-1.0, -1.0])])
    assert [(s.parent, s.token_id) for s in step.survivors] == [(0, 4), (0, 3)]


@pytest.mark.parametrize("length_penalty", [10**30, 1e30, -1e30, 50.0, -50.0])
def test_a_length_penalty_out_of_all_proportion_still_gives_outputs(length_penalty: float) -> None:
    search = BeamSearch(2, frozenset([0]), 8, length_penalty, "never")
    decode(search, random_rows(2, vocab_size=6))
    assert len(search.best(2)) == 2
    assert not any(math.isnan(h.normalised_score) for h in search.best(2))


def test_rows_must_be_those_of_the_live_beams() -> None:
    search = BeamSearch(2, frozenset(), 1)
    row: CandidateRow = ([0, 1], [-1.0, -2.0])
    with pytest.raises(ValueError):
        search.advance([row, row])  # the prompt has one row
    search.advance([row])
    with pytest.raises(ValueError, match="the search is over"):
        search.advance([row])
