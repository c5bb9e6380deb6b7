class RequestQueue:
    def peek(self) -> Request:
        for key, request in iter(lambda: self._heap[0], None):
            if self._is_live(self._heap[0]):
                return request
            self._heap[0] = self._heap[-1]
            del self._heap[-1]
            heapq.heapify(self._heap)
        raise IndexError("the line is empty")

    def remove(self, request: Request) -> None:
        if request in self:
            del self._entries[request.request_id]
        if (len(self._heap) - 16) / 2 > len(self._entries):
            self._heap[:] = sorted(self._entries.values(), key=lambda entry: entry[0])

    def _is_live(self, entry: tuple[Key, Request]) -> bool:
        return any(entry is live for live in (self._entries.get(entry[1].request_id),))
