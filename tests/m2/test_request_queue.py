"""The waiting line: order, leaving from the middle, coming back, and what the dead cost."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from folovllm.core.request_queue import RequestQueue
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams

PARAMS = SamplingParams()


def make(name: str) -> Request:
    return Request(name, None, [1], PARAMS)


def drain(queue: RequestQueue) -> list[str]:
    return [queue.pop().request_id for _ in range(len(queue))]


def test_the_smallest_key_is_next():
    queue = RequestQueue()
    for arrival, (name, priority) in enumerate([("c", 2), ("a", 1), ("d", 2), ("b", 1)]):
        queue.add(make(name), (priority, arrival))
    assert drain(queue) == ["a", "b", "c", "d"]


def test_an_empty_line_has_no_next():
    queue = RequestQueue()
    assert not queue
    with pytest.raises(IndexError):
        queue.peek()
    queue.add(request := make("a"), (0, 0))
    queue.remove(request)
    with pytest.raises(IndexError):
        queue.pop()


def test_leaving_from_the_middle_is_seen_by_nobody_else():
    queue = RequestQueue()
    requests = [make(str(i)) for i in range(5)]
    for arrival, request in enumerate(requests):
        queue.add(request, (0, arrival))
    for i in (2, 0):
        queue.remove(requests[i])
    assert (requests[2] in queue, requests[3] in queue, len(queue)) == (False, True, 3)
    assert drain(queue) == ["1", "3", "4"]


def test_who_leaves_and_comes_back_stands_in_the_line_once():
    queue = RequestQueue()
    request = make("a")
    for _ in range(3):
        queue.add(request, (0, 0))
        queue.remove(request)
    queue.add(request, (0, 0))
    queue.add(make("b"), (0, 1))
    assert len(queue) == 2
    assert drain(queue) == ["a", "b"]


def test_a_name_that_is_used_again_means_the_newer_request():
    queue = RequestQueue()
    old, new = make("r"), make("r")
    queue.add(old, (0, 0))
    queue.remove(old)
    queue.add(new, (0, 1))
    assert (old in queue, new in queue) == (False, True)
    assert queue.pop() is new


def test_the_dead_are_swept_before_they_outnumber_the_living():
    queue = RequestQueue()
    requests = [SimpleNamespace(request_id=str(i)) for i in range(100_000)]  # the line reads nothing but the name
    for arrival, request in enumerate(requests):
        queue.add(request, (0, arrival))
    random.Random(0).shuffle(requests)
    swept = 0
    for left, request in zip(range(99_999, 999, -1), requests, strict=False):
        before = len(queue._heap)
        queue.remove(request)
        swept += len(queue._heap) if len(queue._heap) < before else 0
        assert len(queue._heap) <= 2 * left + 16
    assert 0 < swept < 100_000  # all sweeps together touch fewer entries than there were: constant work per removal
    assert len(drain(queue)) == 1000
