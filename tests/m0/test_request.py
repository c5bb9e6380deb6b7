"""Requests: the names and the order of their sequences, and the derived status."""

from __future__ import annotations

import time
from typing import Any

import pytest

from folovllm import (
    Request,
    RequestStatus,
    SamplingParams,
    SequenceStatus,
)

S = SequenceStatus


def make_request(name: str = "r", **params: Any) -> Request:
    return Request(name, "a prompt", [1, 2, 3], SamplingParams(**params))


def test_a_request_makes_best_of_sequences_and_names_them() -> None:
    request = make_request(n=2, best_of=3)
    assert [s.seq_id for s in request.get_seqs()] == ["r-0", "r-1", "r-2"]
    assert [s.index for s in request.get_seqs()] == [0, 1, 2]
    assert {s.request_id for s in request.get_seqs()} == {"r"}
    assert {s.status for s in request.get_seqs()} == {S.WAITING}


def test_a_request_has_all_its_sequences_from_the_beginning() -> None:
    request = make_request(best_of=3)
    assert len(request.sequences) == request.get_num_seqs() == request.get_num_seqs(S.WAITING) == 3
    first, *others = request.get_seqs()
    first.transition(S.RUNNING)
    first.transition(S.FINISHED_STOPPED)
    assert (request.is_finished(), request.status) == (False, RequestStatus.WAITING)
    for seq in others:
        seq.transition(S.RUNNING)
        seq.transition(S.FINISHED_LENGTH_CAPPED)
    assert (request.is_finished(), request.status) == (True, RequestStatus.FINISHED_LENGTH_CAPPED)


def test_beams_are_as_many_as_best_of_until_a_search_begins() -> None:
    assert make_request(use_beam_search=True, best_of=4, n=2).get_num_seqs() == 4


def test_has_tells_whether_a_sequence_is_in_a_state() -> None:
    request = make_request(n=2)
    request.get_seqs()[0].transition(S.RUNNING)
    assert [request.has(status) for status in (S.RUNNING, S.WAITING, S.SWAPPED)] == [True, True, False]


def test_index_survives_dashes_in_the_request_id() -> None:
    request = make_request("chat-2024-07", n=12)
    assert [s.index for s in request.get_seqs()] == list(range(12))


def test_a_sequence_named_otherwise_has_no_index() -> None:
    with pytest.raises(ValueError, match=r"^seq_id must end in '-<number>' to have an index, got 'child'$"):
        _ = make_request().get_seqs()[0].fork("child").index


def test_sequences_of_one_request_do_not_share_tokens() -> None:
    prompt = [1, 2, 3]
    request = Request("r", None, prompt, SamplingParams(n=2))
    request.get_seqs()[0].add_token_id(9)
    prompt.append(4)
    assert request.sequences["r-1"].get_token_ids() == [1, 2, 3]
    assert request.prompt_token_ids == [1, 2, 3]


def test_an_added_sequence_is_found_by_its_id_and_comes_last() -> None:
    request = make_request(n=2)
    child = request.get_seqs()[0].fork("r-2")
    request.add_seq(child)
    assert request.sequences["r-2"] is child
    assert request.get_seqs() == [request.sequences["r-0"], request.sequences["r-1"], child]
    assert (request.get_num_seqs(), request.get_seqs()[0].seq_id) == (3, "r-0")


def test_an_added_sequence_counts_in_the_requests_status() -> None:
    request = make_request()
    request.get_seqs()[0].transition(S.RUNNING)
    child = request.get_seqs()[0].fork("r-1")
    request.get_seqs()[0].transition(S.FINISHED_STOPPED)
    assert request.is_finished()
    request.add_seq(child)
    assert (request.is_finished(), request.status) == (False, RequestStatus.RUNNING)


def test_a_request_keeps_what_it_was_made_of_and_waits() -> None:
    request = make_request()
    assert (request.request_id, request.prompt, request.prompt_token_ids) == ("r", "a prompt", [1, 2, 3])
    assert request.sampling_params == SamplingParams()
    assert request.status is RequestStatus.WAITING


def test_get_seqs_by_status() -> None:
    request = make_request(n=3)
    request.get_seqs()[1].transition(S.RUNNING)
    assert request.get_num_seqs() == 3
    assert request.get_seqs(S.RUNNING) == [request.get_seqs()[1]]
    assert request.get_num_seqs(S.WAITING) == 2
    assert request.get_num_seqs(S.SWAPPED) == 0


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([S.WAITING, S.WAITING], "WAITING"),
        ([S.WAITING, S.RUNNING], "RUNNING"),
        ([S.SWAPPED, S.WAITING], "SWAPPED"),
        ([S.SWAPPED, S.RUNNING], "RUNNING"),
        ([S.FINISHED_STOPPED, S.WAITING], "WAITING"),
        ([S.FINISHED_STOPPED, S.FINISHED_STOPPED], "FINISHED_STOPPED"),
        ([S.FINISHED_STOPPED, S.FINISHED_LENGTH_CAPPED], "FINISHED_LENGTH_CAPPED"),
        ([S.FINISHED_STOPPED, S.FINISHED_ABORTED], "FINISHED_ABORTED"),
        ([S.FINISHED_STOPPED, S.FINISHED_IGNORED], "FINISHED_STOPPED"),
        ([S.FINISHED_IGNORED, S.FINISHED_IGNORED], "FINISHED_ABORTED"),
    ],
)
def test_status_is_derived_from_the_sequences(statuses: list[SequenceStatus], expected: str) -> None:
    request = make_request(n=len(statuses))
    for sequence, status in zip(request.get_seqs(), statuses, strict=True):
        sequence.status = status
    assert request.status is RequestStatus[expected]
    assert request.is_finished() is expected.startswith("FINISHED")


def test_status_cannot_be_stored() -> None:
    with pytest.raises(AttributeError):
        make_request().status = RequestStatus.RUNNING  # type: ignore[misc]


def test_arrival_time_is_now_and_the_metrics_know_it() -> None:
    before = time.time()
    request = make_request()
    assert before <= request.arrival_time <= time.time()
    assert request.metrics.arrival_time == request.arrival_time


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"request_id": ""}, "request_id must not be empty, got ''"),
        ({"request_id": 7}, "request_id must be a string, got 7 (int)"),
        ({"prompt": 7}, "prompt must be a string or None, got 7"),
        ({"prompt_token_ids": []}, "prompt_token_ids must not be empty, got []"),
        ({"prompt_token_ids": "abc"}, "prompt_token_ids must be a list of token ids, got 'abc' (str)"),
        ({"prompt_token_ids": [1, 2.0]}, "prompt_token_ids[1] must be an integer, got 2.0 (float)"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids[0] must be non-negative, got -1"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids[0] must be an integer, got True (bool)"),
        ({"sampling_params": None}, "sampling_params must be a SamplingParams, got None"),
        ({"arrival_time": float("nan")}, "arrival_time must be a finite number, got nan"),
        ({"priority": 0.5}, "priority must be an integer, got 0.5 (float)"),
    ],
    ids=str,
)
def test_a_wrong_request_is_refused_in_these_words(fields: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "request_id": "r", "prompt": None, "prompt_token_ids": [1], "sampling_params": SamplingParams()
    }  # fmt: skip
    with pytest.raises(ValueError) as caught:
        Request(**{**good, **fields})
    assert str(caught.value) == message
