class RequestQueue:
    def _is_live(self, entry: tuple[Key, Request]) -> bool:
        return entry[1].request_id in self._entries
