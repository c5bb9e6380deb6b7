"""Prompt lookup, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from folovllm.spec_decode.ngram import NgramProposer, find_continuation


@pytest.mark.parametrize(
    ("token_ids", "shortest", "longest", "count", "found"),
    [
        ([1, 2, 3, 4, 1, 2], 1, 4, 3, [3, 4, 1]),
        ([1, 2, 3, 4, 1, 2], 1, 4, 1, [3]),
        ([1, 2, 3, 4, 1, 2], 3, 4, 3, []),  # three of them have not occurred
        ([1, 2, 9, 2, 8, 1, 2], 1, 4, 1, [9]),  # two that match say more than one
        ([1, 2, 9, 2, 8, 1, 2], 1, 1, 1, [8]),  # of several occurrences the latest
        ([7, 7, 7], 1, 4, 4, [7]),  # what follows is as long as there is text
        ([1, 2, 3], 1, 4, 4, []),
        ([1], 1, 4, 4, []),
        ([], 1, 4, 4, []),
    ],
)
def test_what_followed(token_ids, shortest, longest, count, found):
    assert find_continuation(token_ids, shortest, longest, count) == found


def search(token_ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """The definition, place by place: the longest first, and of these the latest."""
    for size in range(min(longest, len(token_ids) - 1), shortest - 1, -1):
        for end in range(len(token_ids) - 1, size - 1, -1):
            if token_ids[end - size : end] == token_ids[-size:]:
                return token_ids[end : end + count]
    return []


@given(
    st.integers(1, 4).flatmap(lambda most: st.lists(st.integers(0, most - 1), max_size=24)),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(0, 5),
)
@settings(max_examples=1000)
def test_it_finds_what_a_search_of_every_place_finds(token_ids, shortest, more, count):
    ask = (token_ids, shortest, shortest + more, count)
    assert find_continuation(*ask) == search(*ask)


def test_prompt_and_output_are_one_text():
    request = Request("r", None, [1, 2, 3, 4], SamplingParams())
    seq = request.get_seqs()[0]
    seq.data.output_token_ids += [1, 2]
    proposer = NgramProposer(2, 4)
    assert proposer.propose([seq, seq], [2, 1]) == [[3, 4], [3]]


def test_a_text_that_grows_and_one_of_the_same_name():
    proposer = NgramProposer(1, 3)
    for prompt in ([1, 2, 3], [2, 2, 1, 3, 1]):
        (seq,) = Request("r", None, prompt, SamplingParams()).get_seqs()
        for token in (3, 1, 2, 1, 2, 2, 3, 1, 1, 2):
            seq.data.output_token_ids.append(token)
            assert proposer.propose([seq], [3]) == [search(seq.get_token_ids(), 1, 3, 3)]
        proposer.forget(seq.seq_id)
