class RequestQueue:
    def remove(self, request: Request) -> None:
        if request in self:
            del self._entries[request.request_id]
        if len(self._heap) > 2 * len(self._entries) + 16:
            self._heap = list(self._entries.values())
