"""The waiting line. The policy is nothing but the key by which the line is sorted:

    fcfs       (0,        arrival)     first come, first served
    priority   (priority, arrival)     the lowest number first; among equals, the one that came first

A heap, so that joining and leaving cost the logarithm of the length. A request that leaves from the middle (an abort)
stays in the heap as a dead entry until it comes to the top.

vLLM: v1/core/sched/request_queue.py
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from folovllm.request import Request

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
