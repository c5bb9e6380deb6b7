class RequestQueue:
    def remove(self, request: Request) -> None:
        entry = self._entries.pop(request.request_id, None)
        if entry is not None:
            self._heap.remove(entry)
