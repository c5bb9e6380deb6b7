class RequestQueue:
    def remove(self, request: Request) -> None:
        if request in self:
            del self._entries[request.request_id]
