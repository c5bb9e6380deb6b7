class RequestQueue:
    def remove(self, request: Request) -> None:
        self._entries.pop(request.request_id, None)
