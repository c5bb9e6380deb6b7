"""The requests that have not ended: the queue of those that wait, and the lists of those that run or are swapped.

    fcfs       (0,        arrival)     first come, first served
    priority   (priority, arrival)     the lowest number first; among equals, the one that came first

The policy is nothing but this key, by which all three are sorted. A request keeps its key: one that comes back goes
before all that came later. With several sequences it can be in more than one of the three.

The queue is a heap. A request that leaves from the middle (an abort) stays there as a dead entry until it is on top.

vLLM: v1/core/sched/request_queue.py
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from itertools import count

from folovllm.request import Request, SequenceStatus

Key = tuple[int, int]


class RequestQueue:
    """Requests in the order of their keys, which must be unique."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, Request]] = []
        self._entries: dict[str, tuple[Key, Request]] = {}  # the live ones, by request id

    def add(self, request: Request, key: Key) -> None:
        """Put a request in line. One that comes back with its old key is before all that came later."""
        entry = (key, request)
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> Request:
        """The next in line. Raises IndexError when the line is empty."""
        while not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._entries[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is; one that is not in line is no error."""
        if request in self:  # and not another one of its name
            del self._entries[request.request_id]
        if len(self._heap) > 2 * len(self._entries) + 16:  # more dead entries than live ones: sweep
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap, self._entries = [], {}

    def _is_live(self, entry: tuple[Key, Request]) -> bool:
        return self._entries.get(entry[1].request_id) is entry

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: Request) -> bool:
        entry = self._entries.get(request.request_id)
        return entry is not None and entry[1] is request

    def __iter__(self) -> Iterator[Request]:
        """In line order; it sorts, which is too slow for every step."""
        return (request for _, request in sorted(self._entries.values(), key=lambda entry: entry[0]))


class RequestLines:
    """Where each request is. `running` and `swapped` have the oldest first.

    Args:
        by_priority: the policy is "priority", else "fcfs".
    """

    def __init__(self, *, by_priority: bool) -> None:
        self.by_priority = by_priority
        self.waiting = RequestQueue()
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self._keys: dict[Request, Key] = {}  # of all that have not ended
        self._arrivals = count()

    def add(self, request: Request) -> None:
        self._keys[request] = (request.priority if self.by_priority else 0, next(self._arrivals))
        self.enter_waiting(request)

    def key(self, request: Request) -> Key:
        return self._keys[request]

    def enter_waiting(self, request: Request) -> None:
        if request not in self.waiting:
            self.waiting.add(request, self._keys[request])

    def settle(self, request: Request) -> None:
        """Put a request where its sequences' statuses say, after a change: among the running if one of them runs, among
        the swapped if one is swapped, and out of the queue if none waits. To put it into the queue is up to the
        caller: enter_waiting()."""
        for line, status in ((self.running, SequenceStatus.RUNNING), (self.swapped, SequenceStatus.SWAPPED)):
            if not request.has(status):
                if request in line:
                    line.remove(request)
            elif request not in line:
                insort(line, request, key=self.key)
        if not request.has(SequenceStatus.WAITING):
            self.waiting.remove(request)
        if request.is_finished():
            self._keys.pop(request, None)

    def rebuild(self) -> None:
        """Put each request where its sequences' statuses say, whatever an interrupt has left of the lines."""
        self.waiting.clear()
        self.running.clear()
        self.swapped.clear()
        for request in list(self._keys):
            self.settle(request)
            if request.has(SequenceStatus.WAITING):
                self.enter_waiting(request)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Request]:
        """In the order of arrival."""
        return iter(self._keys)
