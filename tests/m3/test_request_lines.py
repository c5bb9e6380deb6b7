"""Where a request is, by what its sequences do."""

from __future__ import annotations

from folovllm.core.request_queue import RequestLines
from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams

RUNNING, SWAPPED, WAITING = SequenceStatus.RUNNING, SequenceStatus.SWAPPED, SequenceStatus.WAITING


def lines_of(*statuses: list[SequenceStatus]) -> tuple[RequestLines, list[Request]]:
    """Requests in the order of their arrival, each with sequences of these statuses."""
    lines = RequestLines(by_priority=False)
    requests = [Request(str(i), None, [1], SamplingParams(n=len(each))) for i, each in enumerate(statuses)]
    for request, each in zip(requests, statuses, strict=True):
        lines.add(request)
        for seq, status in zip(request.get_seqs(), each, strict=True):
            seq.status = status
    return lines, requests


def test_a_request_is_wherever_one_of_its_sequences_is():
    lines, (request,) = lines_of([RUNNING, SWAPPED, WAITING])
    lines.settle(request)
    assert (lines.running, lines.swapped, list(lines.waiting)) == ([request], [request], [request])


def test_who_comes_back_is_before_all_that_came_later():
    lines, (first, second) = lines_of([RUNNING], [RUNNING])
    lines.settle(second)
    lines.settle(first)
    assert lines.running == [first, second]


def test_one_that_has_ended_is_nowhere():
    lines, (request,) = lines_of([RUNNING])
    lines.settle(request)
    request.get_seqs()[0].status = SequenceStatus.FINISHED_STOPPED
    lines.settle(request)
    assert (lines.running, list(lines.waiting), len(lines)) == ([], [], 0)


def test_lines_are_put_right_after_an_interrupt():
    lines, (ended, first, second) = lines_of([SequenceStatus.FINISHED_ABORTED], [WAITING], [RUNNING])
    lines.running += [first, ended, first]
    lines.waiting.remove(first)
    lines.rebuild()
    assert (lines.running, list(lines.waiting), list(lines)) == ([second], [first], [first, second])
