"""Prompt lookup, by hand."""

from __future__ import annotations

import pytest

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


def test_prompt_and_output_are_one_text():
    request = Request("r", None, [1, 2, 3, 4], SamplingParams())
    seq = request.first_seq()
    seq.data.output_token_ids += [1, 2]
    proposer = NgramProposer(2, 4)
    assert proposer.propose([seq, seq], [2, 1]) == [[3, 4], [3]]
