class RequestQueue:
    def remove(self, request: Request) -> None:
        self._entries.pop(request.request_id, None)
        if len(self._heap) > 2 * len(self._entries) + 16:
            self._heap = list(self._entries.values())
