class OffloadingManager:
    def _take_free(self, keep=()):
        if self._free:
            return self._free.pop()
        for key in reversed(self._known):
            block = self._known[key].block
            if block not in self._sources and block not in self._moving and block not in self._jobs:
                if key in keep:
                    return None
                del self._known[key]
                self._stores.pop(block, None)
                return block
        return None
