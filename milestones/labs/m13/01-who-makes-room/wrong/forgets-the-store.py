class OffloadingManager:
    def _take_free(self, keep=()):
        if self._free:
            return self._free.pop()
        for key, host in self._known.items():
            if host.block not in self._sources and host.block not in self._moving and host.block not in self._jobs:
                if key in keep:
                    return None
                del self._known[key]
                return host.block
        return None
